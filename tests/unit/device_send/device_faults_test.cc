// What a device can do to a publish: nothing of it reaches the engine, and the next one is as good as the first.
#include "tests/support/waited_clock.h"
#include "tests/unit/device_send/device_sync_fixture.h"

namespace bascule {
namespace {

constexpr int kOutOfMemory = 2;    // cudaErrorMemoryAllocation
constexpr int kLaunchFailure = 9;  // cudaErrorInvalidConfiguration

class DeviceFaultsTest : public DeviceSyncFixture {
 protected:
  void Start() {
    publisher_.reset();
    StopEngine();
    UseShm();
    StartEngine(1);
    StartDeviceTrainer(1);
  }
};

TEST_F(DeviceFaultsTest, AFailureOfAnyCallEndsThePublishByNameAndTheNextOneGoesLive) {
  struct Case {
    const char* function;
    int error;
    const char* reason;
  };
  for (const Case& c :
       {Case{"cudaLaunchKernelExC", kLaunchFailure, "device_error"},
        Case{"cudaEventRecord", kLaunchFailure, "device_error"},
        Case{"cudaMemcpyAsync", kLaunchFailure, "device_error"}, Case{"cudaEventQuery", 700, "device_lost"}}) {
    SCOPED_TRACE(c.function);
    Start();
    const PublishReport first = Publish();
    ExpectLive(first);
    on_device_->Fill(9);
    on_device_->Settle();
    FakeCuda::Fail(c.function, 2, c.error);

    const PublishReport failed = Publish();

    EXPECT_EQ(failed.replicas[0].status.reason(), c.reason) << failed.replicas[0].status.ToString();
    EXPECT_EQ(failed.replicas[0].phase, "send");
    EXPECT_EQ(receiver_->status().live, first.version);
    trainer_->CopyFrom(on_device_->on_host());
    ExpectLive(Publish());
  }
}

// Calls of a publish, one after another: all of them over shared memory, where the publisher alone uses the device;
// over cuda_ipc, where both sides do and all would take two minutes, every sixteenth.
class DeviceFaultSweepTest : public DeviceFaultsTest, public testing::WithParamInterface<TransportKind> {
 protected:
  void StartOver(TransportKind kind) {
    publisher_.reset();
    StopEngine();
    receiver_options_.devices.clear();
    kind == TransportKind::kShm ? UseShm() : UseCudaIpc(1);
    StartEngine(1);
    StartDeviceTrainer(1);
  }
};

TEST_P(DeviceFaultSweepTest, WhicheverCallOfAPublishFailsTheLiveVersionStaysAndTheNextOneWorks) {
  StartOver(GetParam());
  ExpectLive(Publish());
  int failed = 0;
  for (int call = 1;; call += GetParam() == TransportKind::kShm ? 1 : 16) {
    SCOPED_TRACE(call);
    const auto live = receiver_->status().live;
    FakeCuda::Fail("*", call, kLaunchFailure);

    const PublishReport report = Publish();

    if (FakeCuda::TakeBackFaults() == 1) {  // no publish has so many calls
      ExpectLive(report);
      break;
    }
    if (report.AllCommitted()) {
      ExpectLive(report);
      continue;
    }
    ++failed;
    EXPECT_EQ(report.replicas[0].status.reason(), "device_error") << report.replicas[0].status.ToString();
    EXPECT_EQ(receiver_->status().live, live);
    if (failed % 8 == 0) ExpectLive(Publish());
  }
  EXPECT_GT(failed, 20);
  ExpectLive(Publish());
}

INSTANTIATE_TEST_SUITE_P(Transports, DeviceFaultSweepTest,
                         testing::Values(TransportKind::kShm, TransportKind::kCudaIpc),
                         [](const auto& kind) { return std::string(TransportName(kind.param)); });

TEST_F(DeviceFaultsTest, ADeviceWithoutRoomForTheTablesSaysSo) {
  Start();
  FakeCuda::Fail("cudaMalloc", 1, kOutOfMemory);

  const PublishReport failed = Publish();

  EXPECT_EQ(failed.replicas[0].status.reason(), "device_memory");
  EXPECT_FALSE(receiver_->status().live.has_value());
  ExpectLive(Publish());
}

TEST_F(DeviceFaultsTest, WorkThatNeverEndsIsWaitedForALittleAndKeepsItsMemory) {
  WaitedClock clock;
  WeightDevice device(FakeDevice(), *LoadDeviceKernels().value(), clock);
  auto bench = device.TakeBench().value();
  ASSERT_TRUE(bench->payload.Take(FakeDevice().pinned_memory(), 1000).ok());
  ASSERT_TRUE(bench->digests.Take(FakeDevice().memory(), 1000).ok());
  FakeCuda::Fail("cudaMemsetAsync", 1, FakeCuda::kLost);
  ASSERT_TRUE(bench->stream->Fill(bench->digests.bytes(), std::byte{0}).ok());
  const FakeCudaCensus before = FakeCuda::Census();

  const Status given = device.GiveBack(std::move(bench));

  EXPECT_EQ(given.reason(), "device_deadline");
  EXPECT_EQ(FakeCuda::Census().pinned_allocations, before.pinned_allocations);
  EXPECT_EQ(FakeCuda::Census().allocations, before.allocations);
  const auto next = device.TakeBench().value();
  EXPECT_EQ(FakeCuda::Census().streams, before.streams + 1) << "the stuck one is not used again";
}

TEST_F(DeviceFaultsTest, ASnapshotThatCannotBeTakenFailsBeforeAnythingIsSent) {
  for (const Snapshot snapshot : {Snapshot::kHost, Snapshot::kDevice}) {
    options_.snapshot = snapshot;
    Start();
    FakeCuda::Fail(snapshot == Snapshot::kHost ? "cudaHostAlloc" : "cudaMalloc", 1, kOutOfMemory);

    const PublishReport failed = Publish();

    EXPECT_EQ(failed.replicas[0].status.reason(), "device_memory");
    EXPECT_EQ(failed.wire_bytes, 0);
    ExpectLive(Publish());
  }
}

}  // namespace
}  // namespace bascule
