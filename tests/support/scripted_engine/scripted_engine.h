// The engine's end of the protocol, as plain as it can be: places elements one by one into vectors, believes
// everything, and misbehaves where its script says so. What publishers are tested against, beside the real receiver.
//
// Thread-safety: thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "bridge/plan/plan.h"
#include "bridge/session/loopback/loopback_control.h"
#include "bridge/session/messages.h"
#include "bridge/transport/loopback/listener.h"

namespace bascule {

// Where an engine misbehaves: when it should answer this.
enum class EngineStep { kNever, kHello, kOffer, kBucket, kSeal, kFlip, kRollback };

enum class EngineDeed {
  kAbort,   // says why
  kVanish,  // closes channel and routes, as a killed process
  kStall,   // neither answers nor goes away, as a stopped process
};

struct EngineScript {
  EngineStep step = EngineStep::kNever;
  EngineDeed deed = EngineDeed::kAbort;
  Status why = Status::ResourceExhausted("scripted", "the engine's own text");  // of an Abort
  EngineStep hold = EngineStep::kNever;  // do not answer this before the next Play
  // What to say about a bucket; absent: kGood. Anything but kGood means that it is not placed.
  std::function<BucketVerdict(std::uint32_t bucket, std::uint32_t attempt)> judge;
  std::set<std::uint32_t> lose;  // buckets acknowledged as good at the first attempt and thrown away
  bool lose_always = false;      // at any attempt
  // Before it accepts, it has something to say of a session that is over.
  bool speaks_of_another_session = false;
};

class ScriptedEngine {
 public:
  ScriptedEngine(LoopbackControl& control, LoopbackNetwork& network, std::string address, Layout layout,
                 Clock& clock = Clock::Real());
  ~ScriptedEngine();

  void Play(EngineScript script) EXCLUDES(mu_);
  void SetLive(WeightVersion live) EXCLUDES(mu_);
  // As an operator does it: no publisher hears of it.
  void GoBack() EXCLUDES(mu_);
  void TakeFullTensorsOnly() { full_tensors_only_ = true; }

  // Local tensor of an engine rank as of the last commit.
  std::vector<std::byte> Live(int engine_rank, int tensor) const EXCLUDES(mu_);
  WeightVersion live() const EXCLUDES(mu_);

  struct Account {
    int connections = 0;
    int misdeeds = 0;  // as the script wanted
    int holds = 0;
    int frames = 0;
    std::int64_t frame_bytes = 0;  // of all frames
    std::vector<Offer> offers;
    std::vector<ManifestSeal> seals;
    std::vector<Status> aborts;  // said by publishers
    std::vector<WeightVersion> required;
    std::vector<RollBack> rollbacks;         // that were carried out
    std::vector<std::int32_t> credits;       // of each accepted route
    std::vector<std::int64_t> frame_limits;  // of each accepted route
  };
  Account account() const EXCLUDES(mu_);
  // Waits until `wanted` holds of the account.
  bool WaitFor(const std::function<bool(const Account&)>& wanted) const EXCLUDES(mu_);

 private:
  struct Connection;
  using Memory = std::vector<std::vector<std::vector<std::byte>>>;  // per engine rank, per local tensor

  void Serve(ControlChannel& channel);
  // False when the connection is to end.
  bool Answer(Connection& connection, const SessionMessage& message);
  bool OnHello(Connection& connection, const Hello& hello);
  bool OnOffer(Connection& connection, const Offer& offer);
  bool OnSeal(Connection& connection, const Seal& seal);
  bool OnFlip(Connection& connection, const Flip& flip);
  bool OnRollBack(Connection& connection, const RollBack& roll_back);
  // Waits while the script holds this step. True when it wants something else than an answer, which is then done.
  bool Misbehaves(EngineStep step, Connection& connection);
  // Null when the connection ends before its publisher has called.
  BucketReceiver* AcceptRoute(Connection& connection, Route route) EXCLUDES(mu_);
  void ReceiveBuckets(Connection& connection, BucketReceiver& route);
  // What to acknowledge, or nothing when the script ends the route.
  std::optional<BucketAck> TakeFrame(Connection& connection, std::span<const std::byte> frame);
  void Place(const Plan& plan, const Bucket& bucket, std::span<const std::byte> payload) REQUIRES(mu_);

  Clock& clock_;
  const Layout layout_;
  std::unique_ptr<LoopbackListener> listener_;
  std::atomic<bool> full_tensors_only_ = false;
  mutable Mutex mu_;
  mutable CondVar changed_;
  EngineScript script_ GUARDED_BY(mu_);
  Account account_ GUARDED_BY(mu_);
  Memory shadow_ GUARDED_BY(mu_);
  Memory live_memory_ GUARDED_BY(mu_);
  Memory kept_memory_ GUARDED_BY(mu_);
  WeightVersion kept_ GUARDED_BY(mu_);
  WeightVersion live_ GUARDED_BY(mu_){.run = "base", .number = 0, .digest = {}};
  std::unique_ptr<LoopbackControl::Listener> control_;  // last: its threads use the rest
};

}  // namespace bascule
