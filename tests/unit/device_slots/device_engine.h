// A trainer, and an engine of two tensor-parallel ranks whose slots lie in the memory of fake devices; and what those
// must hold after a sync, worked out from the trainer's values.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/network.h"
#include "engine_side/weight_receiver.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/support/scripted_engine/sharded_trainer.h"
#include "tests/support/temp_directory.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {

inline constexpr int kEngineRanks = 2;
inline constexpr std::int64_t kPaddingRows = 3;  // behind the first tensor of each rank

// That of ShardedTrainer for two ranks, whose norms are on both, with padding.
Layout PaddedLayout(std::int64_t rows);

// Contents of all tensors of both ranks.
using EngineContents = std::vector<std::vector<std::vector<std::byte>>>;

// An engine at rest, with a hand in what happens before and at its flips.
class WatchedEngine final : public EngineHooks {
 public:
  std::function<Status(const StagedWeights&)> finalize = [](const StagedWeights&) { return OkStatus(); };
  std::function<void()> before_flip = [] {};

 private:
  Status Finalize(const StagedWeights& staged, Deadline) override { return finalize(staged); }
  Result<SafePoint> RunAtSafePoint(std::uint64_t at_step, const std::function<void()>& critical,
                                   Deadline deadline) override {
    before_flip();
    return idle_.RunAtSafePoint(at_step, critical, deadline);
  }
  KvReport InvalidateKv(const WeightVersion& live) override { return idle_.InvalidateKv(live); }
  IdleHooks idle_;
};

class DeviceEngineTest : public testing::Test {
 protected:
  // An engine as `options` say, on `device`, reached over `transport`.
  void Start(FlipMode flip, TransportKind transport, Device& device = FakeDevice()) {
    WeightReceiverOptions options{.flip = flip};
    options.devices = {&device, &device};
    Start(std::move(options), transport);
  }
  void Start(WeightReceiverOptions options, TransportKind transport);
  void Stop();
  ~DeviceEngineTest() override { Stop(); }

  // Publishes new values. Gives what the engine's replica did.
  ReplicaReport Publish(std::uint32_t seed, PublishRequest request = {});
  // Publishes, and the engine then holds what it must.
  void PublishWell(std::uint32_t seed);
  Status RollBack() { return receiver_->Rollback(std::nullopt, Soon()).status(); }

  EngineContents Expected() const;  // of the trainer's values as they are
  EngineContents Live();
  static Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(60)); }

  std::atomic<int> frames_to_spoil_ = 0;  // of the next ones over cuda_ipc
  TempDirectory directory_;
  IdleHooks idle_;
  EngineHooks* hooks_ = &idle_;     // of the next Start
  WeightPublisherOptions sending_;  // likewise
  ShardedTrainer trainer_{/*trainer_ranks=*/2, /*rows=*/24};
  LoopbackControl control_{Clock::Real()};
  LoopbackNetwork network_;
  std::unique_ptr<TransportListener> listener_;
  std::unique_ptr<TransportDialer> dialer_;
  std::unique_ptr<WeightReceiver> receiver_;
  std::unique_ptr<LoopbackControl::Listener> server_;
  std::unique_ptr<WeightPublisher> publisher_;
};

}  // namespace bascule
