// What a sync does when the device fails: whichever call it is, the session ends for that reason, the version that is
// live stays, nothing is left over, and the next sync works.
#include <cuda_runtime_api.h>

#include "tests/support/device_work/device_work.h"
#include "tests/support/process_census.h"
#include "tests/support/waited_clock.h"
#include "tests/unit/device_slots/device_engine.h"

namespace bascule {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

void ExpectSameCensus(const FakeCudaCensus& now, const FakeCudaCensus& before) {
  EXPECT_EQ(now.allocations, before.allocations);
  EXPECT_EQ(now.pinned_allocations, before.pinned_allocations);
  EXPECT_EQ(now.streams, before.streams);
  EXPECT_EQ(now.events, before.events);
}

class DeviceFaultTest : public DeviceEngineTest, public testing::WithParamInterface<FlipMode> {
 protected:
  // After a sync that failed: what is live is what was, `before` is all that is there, and the next sync works.
  void ExpectNothingLeft(const FakeCudaCensus& before, const std::optional<WeightVersion>& version,
                         const EngineContents& live) {
    EXPECT_EQ(receiver_->status().live, version);
    EXPECT_EQ(Live(), live);
    ExpectSameCensus(FakeCuda::Census(), before);
  }
};

// Not every call, so that it does not take long; the two modes and the three errors meet different ones.
TEST_P(DeviceFaultTest, I6WhicheverCallFailsTheLiveVersionStaysAllComesBackAndTheNextSyncWorks) {
  constexpr int kErrors[] = {cudaErrorMemoryAllocation, cudaErrorIllegalAddress, cudaErrorInvalidValue};
  Start(GetParam(), TransportKind::kLoopback);
  PublishWell(1);
  PublishWell(2);
  const FakeCudaCensus before = FakeCuda::Census();
  std::uint32_t seed = 2;
  int failed = 0;
  const bool shadow = GetParam() == FlipMode::kShadow;
  for (int call = shadow ? 1 : 2;; call += shadow ? 5 : 11) {
    SCOPED_TRACE(call);
    const EngineContents live = Live();
    const auto version = receiver_->status().live;
    FakeCuda::Fail("*", call, kErrors[failed % 3]);

    const Status status = Publish(++seed).status;

    if (FakeCuda::TakeBackFaults() == 1) {  // no sync has so many calls
      EXPECT_TRUE(status.ok()) << status.ToString();
      break;
    }
    ++failed;
    EXPECT_THAT(status.reason(), AnyOf("device_memory", "device_lost", "device_error", "flip_undone"));
    EXPECT_THAT(status.message(), HasSubstr("fakeError"));
    ExpectNothingLeft(before, version, live);
    PublishWell(++seed);
  }
  EXPECT_GT(failed, 12);
}

// Every call that enqueues something, one after another, in staging, proof and flip.
class DeviceFaultSweepTest : public DeviceFaultTest {
 protected:
  void FailEveryCallOf(const char* function) {
    Start(GetParam(), TransportKind::kLoopback);
    PublishWell(1);
    PublishWell(2);
    const FakeCudaCensus before = FakeCuda::Census();
    std::uint32_t seed = 2;
    for (int call = 1;; ++call) {
      SCOPED_TRACE(call);
      const EngineContents live = Live();
      const auto version = receiver_->status().live;
      FakeCuda::Fail(function, call, cudaErrorInvalidValue);

      const Status status = Publish(++seed).status;

      if (FakeCuda::TakeBackFaults() == 1) {  // no sync has so many
        EXPECT_TRUE(status.ok()) << status.ToString();
        EXPECT_GT(call, 3);
        return;
      }
      EXPECT_THAT(status.reason(), AnyOf("device_error", "flip_undone"));
      EXPECT_THAT(status.message(), HasSubstr("fakeError"));
      ExpectNothingLeft(before, version, live);
      if (call % 8 == 0) PublishWell(++seed);
    }
  }
};

TEST_P(DeviceFaultSweepTest, I6EveryCopyOfASyncMayFailOnce) { FailEveryCallOf("cudaMemcpyAsync"); }
TEST_P(DeviceFaultSweepTest, I6EveryKernelOfASyncMayFailOnce) { FailEveryCallOf("cudaLaunchKernelExC"); }
TEST_P(DeviceFaultSweepTest, I6EveryMarkOfASyncMayFailOnce) { FailEveryCallOf("cudaEventRecord"); }
TEST_P(DeviceFaultSweepTest, I6EveryClearingOfASyncMayFailOnce) { FailEveryCallOf("cudaMemsetAsync"); }

constexpr auto NameOfMode = [](const testing::TestParamInfo<FlipMode>& mode) {
  return mode.param == FlipMode::kShadow ? "shadow" : "in_place";
};
INSTANTIATE_TEST_SUITE_P(Modes, DeviceFaultSweepTest, testing::Values(FlipMode::kShadow, FlipMode::kInPlace),
                         NameOfMode);
INSTANTIATE_TEST_SUITE_P(Modes, DeviceFaultTest, testing::Values(FlipMode::kShadow, FlipMode::kInPlace), NameOfMode);

class DeviceMemoryTest : public DeviceEngineTest {};

TEST_F(DeviceMemoryTest, AnEngineThatFindsNoRoomOnItsDeviceSaysSoAndLeavesNothing) {
  Start(FlipMode::kInPlace, TransportKind::kLoopback);
  Stop();
  const FakeCudaCensus before = FakeCuda::Census();
  int failed = 0;
  for (const char* function :
       {"cudaMalloc", "cudaHostAlloc", "cudaStreamCreateWithPriority", "cudaEventCreateWithFlags"}) {
    for (int call = 1;; ++call) {
      SCOPED_TRACE(call);
      FakeCuda::Fail(function, call, cudaErrorMemoryAllocation);
      WeightReceiverOptions options{.layout = PaddedLayout(24), .flip = FlipMode::kInPlace};
      options.device_staging = {.lanes = 2, .lane_bytes = 4096, .exchange_bytes = 4096};
      options.devices = {&FakeDevice(), &FakeDevice()};

      const Status status = WeightReceiver::Create(std::move(options), idle_).status();

      ExpectSameCensus(FakeCuda::Census(), before);
      if (FakeCuda::TakeBackFaults() == 1) break;
      ++failed;
      EXPECT_THAT(status.reason(), AnyOf("device_memory", "slot_memory")) << function;
    }
  }
  EXPECT_GT(failed, 15);
}

TEST_F(DeviceMemoryTest, ASyncNeedsNoMemoryBeyondWhatTheEngineHasFromTheStart) {
  Start(FlipMode::kInPlace, TransportKind::kShm);
  PublishWell(1);
  const FakeCudaCensus before = FakeCuda::Census();

  for (std::uint32_t seed = 2; seed <= 4; ++seed) PublishWell(seed);

  ExpectSameCensus(FakeCuda::Census(), before);
}

// A clock that can be made to hurry, so that what nobody should wait for longer is given up soon.
class HurryingClock final : public Clock {
 public:
  void Hurry() {
    const MutexLock lock(mu_);
    since_ = Clock::Real().Now();
    speed_ = 1000;
  }
  TimePoint Now() override {
    const MutexLock lock(mu_);
    return since_ + (Clock::Real().Now() - since_) * speed_;
  }
  std::chrono::system_clock::time_point WallNow() override { return Clock::Real().WallNow(); }
  bool WaitUntil(CondVar& cond, Mutex& mu, TimePoint until) override REQUIRES(mu) {
    WaitReal(cond, mu, Clock::Real().Now() + std::min<Duration>((until - Now()) / 1000, std::chrono::milliseconds(1)));
    return Now() < until;
  }

 private:
  Mutex mu_;
  TimePoint since_ GUARDED_BY(mu_) = Clock::Real().Now();
  int speed_ GUARDED_BY(mu_) = 1;
};

class EndlessWorkTest : public DeviceEngineTest {
 protected:
  ~EndlessWorkTest() override {
    FakeCuda::TakeBackFaults();
    Stop();  // before its clock goes
  }
  void Start(FlipMode flip) {
    WeightReceiverOptions options{.flip = flip, .max_session = std::chrono::hours(24), .clock = &clock_};
    options.devices = {&FakeDevice(), &FakeDevice()};
    sending_.deadline = std::chrono::hours(24);
    DeviceEngineTest::Start(std::move(options), TransportKind::kLoopback);
  }
  // The `nth` call of `function` enqueues what never runs.
  void Lose(const char* function, int nth) {
    FakeCuda::Fail(function, nth, FakeCuda::kLost);
    clock_.Hurry();
  }
  HurryingClock clock_;
};

TEST_F(EndlessWorkTest, I8StagingThatTheDeviceNeverEndsIsGivenUpAndNobodyUsesItsSlotAgain) {
  Start(FlipMode::kShadow);
  PublishWell(1);
  const EngineContents live = Live();
  Lose("cudaLaunchKernelExC", 2);  // of a bucket; the first fills padding

  EXPECT_EQ(Publish(2).status.reason(), "device_deadline");

  EXPECT_EQ(Live(), live);
  EXPECT_EQ(Publish(3).status.reason(), "device_deadline") << "the kernel may yet write to the slot";
  EXPECT_EQ(Live(), live);
}

TEST_F(EndlessWorkTest, I10AFlipInPlaceThatTheDeviceNeverEndsLeavesNothingToServe) {
  WatchedEngine engine;
  hooks_ = &engine;
  Start(FlipMode::kInPlace);
  PublishWell(1);
  engine.before_flip = [&] { Lose("cudaMemcpyAsync", 4); };

  EXPECT_EQ(Publish(2).status.reason(), "live_lost");

  EXPECT_TRUE(receiver_->AcquireLive().empty());
  Stop();
}

}  // namespace
}  // namespace bascule
