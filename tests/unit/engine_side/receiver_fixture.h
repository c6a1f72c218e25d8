// A receiver behind loopback control and transport, on a clock that the test moves.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "engine_side/weight_receiver.h"
#include "tests/support/fake_clock.h"
#include "tests/unit/engine_side/scripted_publisher.h"

namespace bascule {

// An engine whose safe points the test gives, and which notes what it is told inside them.
class ScriptedHooks final : public EngineHooks {
 public:
  explicit ScriptedHooks(Clock& clock) : clock_(clock) {}
  Result<SafePoint> RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                   Deadline deadline) override;
  bool Decoding() const override { return decoding; }
  KvReport InvalidateKv(const WeightVersion& live) override;
  Status Finalize(const StagedWeights& staged, Deadline deadline) override;

  // No safe point comes until Resume.
  void Hold();
  void Resume();
  // True once a flip waits for its safe point.
  bool waiting() const;
  int safe_points() const;  // that were over
  std::vector<WeightVersion> invalidated() const;
  std::atomic<bool> decoding = true;
  // What Finalize does, set while no session is open; nothing: all is well.
  std::function<Status(const StagedWeights&)> finalize;
  // Asked inside the critical section: what AcquireLive shows there.
  std::function<std::optional<WeightVersion>()> live;
  std::vector<std::optional<WeightVersion>> live_inside() const;
  // Called when a safe point has come, before what is done there.
  std::function<void()> at_safe_point = [] {};

 private:
  Clock& clock_;
  mutable Mutex mu_;
  CondVar changed_;
  bool held_ GUARDED_BY(mu_) = false;
  bool waiting_ GUARDED_BY(mu_) = false;
  int safe_points_ GUARDED_BY(mu_) = 0;
  std::uint64_t step_ GUARDED_BY(mu_) = 100;
  std::vector<WeightVersion> invalidated_ GUARDED_BY(mu_);
  std::vector<std::optional<WeightVersion>> live_inside_ GUARDED_BY(mu_);
};

class ReceiverTest : public ::testing::Test {
 protected:
  ReceiverTest() { Start(2); }

  // Anew, with so many slots, or otherwise as `options` say.
  void Start(int slot_count) { Start(WeightReceiverOptions{.slot_count = slot_count}); }
  void Start(WeightReceiverOptions options);
  void Stop();
  std::unique_ptr<ScriptedPublisher> Connect(InstanceId id = InstanceId::Mint());  // no Hello yet
  std::unique_ptr<ScriptedPublisher> Greeted(InstanceId id = InstanceId::Mint());
  // A publisher that has made version 1 live.
  std::unique_ptr<ScriptedPublisher> WithVersionOne();

  Deadline Soon() { return Deadline::After(clock_, std::chrono::hours(10)); }
  // Waits until the receiver's status is so.
  void WaitFor(const std::function<bool(const ReceiverStatus&)>& condition);
  void WaitUntilNoSessionIsOpen() {
    WaitFor([](const ReceiverStatus& status) { return !status.session; });
  }
  // Compares every byte that both engine ranks hold, padding included, with version `number`.
  void ExpectLiveBytesOf(std::uint64_t number) { ExpectLiveBytes(number, {number, number, number, number}); }
  // The same, of a version whose tensors a, b, n and v are those of other versions.
  void ExpectLiveBytes(std::uint64_t number, const std::array<std::uint64_t, 4>& of);
  std::uint64_t live_number() { return receiver_->status().live ? receiver_->status().live->number : 0; }

  FakeClock clock_;
  LoopbackControl control_{clock_};
  LoopbackNetwork network_;
  ScriptedHooks hooks_{clock_};
  LoopbackDialer dialer_{network_, clock_};
  std::unique_ptr<LoopbackListener> transport_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<LoopbackControl::Listener> server_;
};

}  // namespace bascule
