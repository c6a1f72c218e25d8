// A trainer whose tensors lie on a device publishes to an engine that has its slots in host memory.
#include "tests/unit/device_send/device_sync_fixture.h"

namespace bascule {
namespace {

class DevicePublishTest : public DeviceSyncFixture {};

struct Setting {
  int trainer_ranks;
  bool shm;
  Snapshot snapshot;
};

class DevicePublishesTest : public DevicePublishTest, public testing::WithParamInterface<Setting> {};

TEST_P(DevicePublishesTest, EveryVersionIsWhatTheTrainersStreamHadWrittenBeforeItsEvent) {
  GetParam().shm ? UseShm() : UseLoopback();
  options_.snapshot = GetParam().snapshot;
  StartEngine(/*engine_ranks=*/2);
  StartDeviceTrainer(GetParam().trainer_ranks);

  for (std::uint32_t step = 1; step <= 3; ++step) {
    FakeCuda::SetSeed(step);
    ExpectLive(Step(step));
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, DevicePublishesTest,
                         testing::Values(Setting{1, true, Snapshot::kNone}, Setting{2, false, Snapshot::kNone},
                                         Setting{2, true, Snapshot::kHost}, Setting{1, false, Snapshot::kDevice}),
                         [](const testing::TestParamInfo<Setting>& setting) {
                           return fmt::format("{}TrainerRanks{}{}", setting.param.trainer_ranks,
                                              setting.param.shm ? "Shm" : "Loopback",
                                              setting.param.snapshot == Snapshot::kNone   ? "NoSnapshot"
                                              : setting.param.snapshot == Snapshot::kHost ? "HostSnapshot"
                                                                                          : "DeviceSnapshot");
                         });

// C-028.
TEST_F(DevicePublishTest, APublishThatIsNotToldOfTheTrainersEventIsFoundOutByTheDigest) {
  UseShm();
  StartEngine(1);
  StartDeviceTrainer(1);
  bool found = false;
  for (std::uint32_t step = 1; step <= 40 && !found; ++step) {
    FakeCuda::SetSeed(step);
    for (std::uint32_t before = 0; before < 10; ++before) on_device_->Fill(1000 + before);  // a stream with a lot to do
    on_device_->Fill(step);
    trainer_->CopyFrom(on_device_->on_host());

    const PublishReport report = Publish();

    found = report.version.digest != OracleVersionDigest(ShardedTrainer::WireTensors(kRows), trainer_->WireBytes());
    on_device_->Settle();
  }
  EXPECT_TRUE(found);
}

// C-028.
TEST_F(DevicePublishTest, WithASnapshotTheTensorsMayChangeOncePacked) {
  for (const Snapshot snapshot : {Snapshot::kHost, Snapshot::kDevice}) {
    publisher_.reset();
    StopEngine();
    UseShm();
    options_.snapshot = snapshot;
    StartEngine(1);
    StartDeviceTrainer(1);
    on_device_->Fill(5);
    trainer_->CopyFrom(on_device_->on_host());
    const auto handle = publisher_->Publish({.ready = {&on_device_->written()}}).value();
    ASSERT_TRUE(handle->WaitPacked(Deadline::After(Clock::Real(), std::chrono::minutes(1))).ok());

    on_device_->Fill(6);
    const auto report = handle->WaitCommitted(Deadline::After(Clock::Real(), std::chrono::minutes(1)));

    ASSERT_TRUE(report.ok());
    ExpectLive(*report);
    on_device_->Settle();
  }
}

TEST_F(DevicePublishTest, AGuardLooksAtWeightsOnADevice) {
  UseShm();
  options_.guard = WeightGuard{};
  StartEngine(1);
  StartDeviceTrainer(1);

  const PublishReport report = Step(1);  // there are NaNs among its values

  EXPECT_EQ(report.replicas[0].status.reason(), "weights_not_finite");
  EXPECT_FALSE(receiver_->status().live.has_value());
}

TEST_F(DevicePublishTest, FullTensorsAreGatheredFromADevice) {
  UseLoopback();
  receiver_options_.full_tensors_only = true;
  StartEngine(1);
  StartDeviceTrainer(2);

  ExpectLive(Step(3));
}

TEST_F(DevicePublishTest, WhatDoesNotFitTogetherIsRefusedByName) {
  UseShm();
  StartEngine(1);
  StartTrainer(1);
  TensorSource misplaced = trainer_->Source();
  misplaced.LieOn(FakeWeightDevice());

  EXPECT_EQ(WeightPublisher::Create(options_, std::move(misplaced)).status().reason(), "not_on_device");
  EXPECT_EQ(publisher_->Publish({.ready = {FakeDevice().MakeEvent().value().get()}}).status().reason(), "bad_options");
  options_.snapshot = Snapshot::kDevice;
  EXPECT_EQ(WeightPublisher::Create(options_, trainer_->Source()).status().reason(), "bad_options");
}

}  // namespace
}  // namespace bascule
