// A simulated replica: the product's WeightReceiver behind the simulated network, and a loop of decode steps that reads
// every weight, or a cache daemon on top; and what must hold of them at every step.
//
// Thread-safety: confined to one thread; its functions run on fibers.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/worker.h"
#include "bridge/send/replica_connection.h"
#include "engine_side/cache_daemon/cache_daemon.h"
#include "engine_side/weight_receiver.h"
#include "tests/simulation/engine_start.h"
#include "tests/simulation/fleet_promises.h"
#include "tests/simulation/network.h"
#include "tests/simulation/scheduler.h"
#include "tests/simulation/version_record.h"
#include "tests/simulation/watch.h"

namespace bascule::simulation {

struct EngineKind {
  int ranks = 1;
  int slot_count = 2;
  FlipMode flip = FlipMode::kShadow;
  bool has_base = false;      // weights in its files
  bool joins = false;         // it is a member of the fleet
  bool is_daemon = false;     // it decodes nothing and lends versions to the engines of its host
  std::string daemon;         // address of the daemon that it follows; empty: none
  std::string socket;         // of that, or its own
  bool checks_daemon = true;  // it digests what it maps
};

class EngineNode final : private EngineHooks, private BlockCopier {
 public:
  // Borrows all but the values.
  EngineNode(Scheduler& scheduler, Network& network, VersionRecord& versions, FleetPromises& promises,
             const EngineSurroundings& surroundings, Watch watch, NodeId node, std::string address,
             const EngineKind& kind);
  ~EngineNode() override;  // as a process that ends; waits for its fibers

  NodeId node() const { return node_; }
  const std::string& address() const { return address_; }
  WeightReceiver& receiver() { return *receiver_; }

  // What a line of this engine's log says of its session.
  void OnSessionState(std::string_view session, std::string_view state);
  std::string_view session_state() const { return session_state_; }  // of the last one; "idle" before any
  bool session_is_partial() const { return partial_.contains(session_); }

  // A partial version is offered to this engine, and taken by it: messages on their way.
  void OnPartialOffer(const Offer& offer);
  void OnAccept(SessionId session);

  // Faults.
  void RollBack(Duration patience);
  void HoldLease(Duration time);
  // So many copies of a flip in place, after others that do not.
  void FailCopies(int before, int count) {
    copies_before_ = before;
    copies_to_fail_ = count;
  }
  // The process is being killed: nothing that it does counts any more.
  void StopChecking() { checked_ = false; }

  // Of an engine that is left in peace.
  void CheckQuiet();
  void CheckLive(const Content& content, std::uint64_t number);
  // A flip in place failed beyond repair.
  bool lost() const { return !made_live_.empty() && receiver_->AcquireLive().empty(); }
  std::optional<FleetWelcome> waits_for() const { return start_->waits_for(); }
  bool HasLive(const WeightVersion& version) const { return receiver_->status().live == version; }

  bool WasLive(const WeightVersion& version) const;  // in this life
  // Also between the exchange of the slots and the caches' news of it, by which WasLive knows.
  bool IsLiveNow(const WeightVersion& version);
  // The highest number that was live in a run; the engine refuses it, and those below.
  std::uint64_t HighestNumber(const std::string& run) const;

  // Sends what is live here to another engine.
  Status SendLiveTo(const PeerRequest& request, Deadline deadline);

 private:
  Result<SafePoint> RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                   Deadline deadline) override;
  KvReport InvalidateKv(const WeightVersion& live) override;
  Status Copy(std::span<std::byte> to, std::span<const std::byte> from) override;

  bool LostSinceItsLastFlip() const;
  void Decode(const std::stop_token& stop);
  void DecodeStep();
  void FollowStatus(const std::stop_token& stop);
  std::string OwnAddress() const { return address_ + "/own"; }
  std::unique_ptr<ControlHost::Listener> Listen(const std::string& address);
  void CreateReceiver(TransportListener& routes);
  void CreateDaemon();
  void FollowDaemon(const std::stop_token& stop);
  Status LoadBase();
  ConnectionOptions ConnectionTo(const std::string& address, ControlDialer& control, TransportDialer& routes);
  void CheckBytes(const WeightLease& lease, std::string_view when);
  void CheckHistory();
  void Broken(std::string_view invariant, const std::string& what);

  Scheduler& scheduler_;
  Network& network_;
  Clock& clock_;
  VersionRecord& versions_;
  FleetPromises& promises_;
  const Watch watch_;
  const NodeId node_;
  const std::string address_;
  const EngineKind kind_;
  bool checked_ = true;

  Mutex mu_;
  CondVar changed_;
  bool stepping_ GUARDED_BY(mu_) = false;
  bool critical_ GUARDED_BY(mu_) = false;
  int waiting_ GUARDED_BY(mu_) = 0;
  std::uint64_t step_ GUARDED_BY(mu_) = 0;

  std::vector<WeightVersion> made_live_;          // in order, rollbacks included
  std::map<std::string, std::uint64_t> highest_;  // by run
  std::optional<WeightVersion> kept_;             // a flip to it is a rollback: numbers are not used again
  int copies_before_ = 0;
  int copies_to_fail_ = 0;
  // What a session of a partial version builds on, and how often a version had gone live when it was offered.
  struct PartialSession {
    WeightVersion base;
    std::size_t flips = 0;
  };
  std::map<std::string, PartialSession> partial_;
  std::string session_;            // the last one
  std::string receiving_session_;  // not over yet
  TimePoint receiving_since_;
  std::string session_state_ = "idle";

  std::unique_ptr<ControlHost> host_;
  std::unique_ptr<TransportListener> routes_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<ControlHost::Listener> own_server_;  // for itself
  std::unique_ptr<ControlHost::Listener> server_;
  std::unique_ptr<CacheDaemon> daemon_;
  std::unique_ptr<EngineStart> start_;
  std::vector<Worker> workers_;  // last
};

}  // namespace bascule::simulation
