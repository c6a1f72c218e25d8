// A simulated inference engine: the product's WeightReceiver behind the simulated network, a loop of decode steps that
// reads every weight, and what must hold of both at every step.
//
// Thread-safety: confined to one thread; its functions run on fibers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/worker.h"
#include "engine_side/weight_receiver.h"
#include "tests/simulation/contents.h"
#include "tests/simulation/network.h"
#include "tests/simulation/scheduler.h"

namespace bascule::simulation {

struct Watch {
  // Ends the schedule: a promise was broken.
  std::function<void(std::string_view invariant, const std::string& what)> violation;
  // How long processes, or the machine, have stood still since then: no deadline counts that.
  std::function<Duration(TimePoint since)> stood_still_since;
};

// What has gone live, by address of the engine, over all its lives.
using WentLive = std::map<std::string, std::vector<WeightVersion>>;

struct EngineKind {
  int ranks = 1;
  int slot_count = 2;
  FlipMode flip = FlipMode::kShadow;
};

class EngineNode final : private EngineHooks, private BlockCopier {
 public:
  EngineNode(Scheduler& scheduler, Network& network, WentLive& went_live, Watch watch, NodeId node, std::string address,
             const EngineKind& kind);
  ~EngineNode() override;  // as a process that ends; waits for its fibers

  NodeId node() const { return node_; }
  const std::string& address() const { return address_; }
  WeightReceiver& receiver() { return *receiver_; }

  // What a line of this engine's log says of its session.
  void OnSessionState(std::string_view session, std::string_view state);
  std::string_view session_state() const { return session_state_; }  // of the last one; "idle" before any

  // Faults.
  void RollBack(Duration patience);
  void HoldLease(Duration time);
  void FailNextCopies(int count) { copies_to_fail_ = count; }
  // The process is being killed: nothing that it does counts any more.
  void StopChecking() { checked_ = false; }

  // Of an engine that is left in peace.
  void CheckQuiet();
  void CheckLive(const Content& content, std::uint64_t number);

 private:
  Result<SafePoint> RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                   Deadline deadline) override;
  KvReport InvalidateKv(const WeightVersion& live) override;
  Status Copy(std::span<std::byte> to, std::span<const std::byte> from) override;

  void Decode(const std::stop_token& stop);
  void DecodeStep();
  void FollowStatus(const std::stop_token& stop);
  void CheckBytes(const WeightLease& lease, std::string_view when);
  void CheckHistory();
  bool WasLive(const WeightVersion& version) const;
  void Broken(std::string_view invariant, const std::string& what);

  Scheduler& scheduler_;
  Clock& clock_;
  WentLive& went_live_;
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

  std::vector<WeightVersion> made_live_;  // in order, rollbacks included
  std::uint64_t highest_ = 0;
  int rolling_back_ = 0;
  bool lost_ = false;  // a flip in place failed beyond repair
  int copies_to_fail_ = 0;
  std::string receiving_session_;  // not over yet
  TimePoint receiving_since_;
  std::string session_state_ = "idle";

  std::unique_ptr<ControlHost> host_;
  std::unique_ptr<TransportListener> routes_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<ControlHost::Listener> server_;
  std::vector<Worker> workers_;  // last
};

}  // namespace bascule::simulation
