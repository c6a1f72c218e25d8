// Weights that never leave the device: from a trainer's tensors through frames of cuda_ipc into an engine's slots,
// proven there, and live.
#include "tests/unit/device_send/device_sync_fixture.h"

namespace bascule {
namespace {

struct Setting {
  int trainer_ranks;
  int engine_ranks;
  Snapshot snapshot;
  FlipMode flip;
};

class CudaIpcSyncTest : public DeviceSyncFixture {};
class CudaIpcSyncsTest : public CudaIpcSyncTest, public testing::WithParamInterface<Setting> {};

TEST_P(CudaIpcSyncsTest, EveryVersionGoesLiveWithTheDigestOfTheTrainersTensors) {
  UseCudaIpc(GetParam().engine_ranks);
  options_.snapshot = GetParam().snapshot;
  receiver_options_.flip = GetParam().flip;
  StartEngine(GetParam().engine_ranks);
  StartDeviceTrainer(GetParam().trainer_ranks);

  for (std::uint32_t step = 1; step <= 2; ++step) {
    FakeCuda::SetSeed(step);
    const PublishReport report = Step(step);

    ExpectLive(report);
    EXPECT_EQ(report.replicas[0].transport, TransportKind::kCudaIpc);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, CudaIpcSyncsTest,
                         testing::Values(Setting{1, 1, Snapshot::kNone, FlipMode::kShadow},
                                         Setting{2, 2, Snapshot::kNone, FlipMode::kInPlace},
                                         Setting{2, 1, Snapshot::kDevice, FlipMode::kShadow}),
                         [](const testing::TestParamInfo<Setting>& setting) {
                           return fmt::format(
                               "{}TrainerRanks{}EngineRanks{}{}", setting.param.trainer_ranks,
                               setting.param.engine_ranks,
                               setting.param.snapshot == Snapshot::kNone ? "NoSnapshot" : "DeviceSnapshot",
                               setting.param.flip == FlipMode::kShadow ? "Shadow" : "InPlace");
                         });

TEST_F(CudaIpcSyncTest, TheVersionBeforeComesBackWithoutATransfer) {
  UseCudaIpc(1);
  StartEngine(1);
  StartDeviceTrainer(1);
  const PublishReport first = Step(1);
  const PublishReport second = Step(2);
  ASSERT_TRUE(first.AllCommitted() && second.AllCommitted());

  const auto back = receiver_->Rollback(std::nullopt, Deadline::After(Clock::Real(), std::chrono::minutes(1)));

  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(back->version, first.version);
}

TEST_F(CudaIpcSyncTest, AFailureOfAnyCallOnEitherSideLeavesTheVersionThatIsLiveAndTheNextPublishGoesLive) {
  for (const auto& [function, nth] : {std::pair("cudaLaunchKernelExC", 1),
                                      {"cudaLaunchKernelExC", 4},
                                      {"cudaMemcpyAsync", 3},
                                      {"cudaMalloc", 2},
                                      {"cudaIpcGetMemHandle", 1}}) {
    SCOPED_TRACE(fmt::format("{} {}", function, nth));
    publisher_.reset();
    StopEngine();
    UseCudaIpc(1);
    StartEngine(1);
    StartDeviceTrainer(1);
    FakeCuda::Fail(function, nth, 9);

    const PublishReport failed = Publish();

    EXPECT_FALSE(failed.AllCommitted());
    EXPECT_THAT(failed.replicas[0].status.message(), testing::HasSubstr("fakeError9"));
    EXPECT_FALSE(receiver_->status().live.has_value());
    ExpectLive(Publish());
  }
}

}  // namespace
}  // namespace bascule
