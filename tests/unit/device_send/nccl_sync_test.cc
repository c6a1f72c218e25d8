// Weights that NCCL brings from a trainer's device to an engine's ranks on others: whole syncs, what goes to all ranks
// at once, and the way round when it fails.
#include <nccl.h>

#include "bridge/plan/planner.h"
#include "bridge/plan/twins.h"
#include "bridge/transport/nccl/dialer.h"
#include "bridge/transport/nccl/listener.h"
#include "tests/support/fake_nccl/control.h"
#include "tests/support/fake_nccl/fill_device.h"
#include "tests/unit/device_send/device_sync_fixture.h"

namespace bascule {
namespace {

constexpr int kEngineRanks = 2;

class NcclSyncTest : public DeviceSyncFixture {
 protected:
  // Engine ranks on devices 1 and 2, which NCCL or, in its place, the host's memory can reach.
  void Start(int trainer_ranks, bool with_other_way = true) {
    publisher_.reset();
    StopEngine();
    StopListening();
    nccl_listener_.reset();
    carrier_.reset();
    UseLoopback();
    carrier_ = LoopbackListener::Create(network_, "carrier").value();
    nccl_listener_ =
        std::make_unique<NcclListener>(std::vector{&FakeDevice(1), &FakeDevice(2)}, communicators_, *carrier_);
    nccl_ = std::make_unique<NcclDialer>(FakeDevice(0), communicators_, carrying_);
    receiver_options_.devices = {&FakeDevice(1), &FakeDevice(2)};
    receiver_options_.layout = ShardedTrainer::EngineLayout(kEngineRanks, kRows);
    receiver_options_.listeners = {nccl_listener_.get(), listener_.get()};
    receiver_ = *WeightReceiver::Create(receiver_options_, hooks_);
    serving_ = *control_.Listen("engine", [this](ControlChannel& channel) { (void)receiver_->Serve(channel); });
    trainer_ = std::make_unique<ShardedTrainer>(trainer_ranks, kRows);  // what the fixture compares with
    Configure();
    options_.transports = {nccl_.get()};
    options_.fallbacks.clear();
    if (with_other_way) options_.fallbacks = {dialer_.get()};
    on_device_ = std::make_unique<DeviceTrainer>(trainer_ranks, kRows);
    publisher_ = WeightPublisher::Create(options_, on_device_->source()).value();
  }
  void TearDown() override {
    publisher_.reset();
    StopEngine();
    nccl_listener_.reset();
  }
  HistoryEntry LastButOne() const {
    const std::vector<HistoryEntry> rows = receiver_->History();
    return rows.at(rows.size() - 2);
  }

  Communicators& communicators_ = **LoadCommunicators();
  std::unique_ptr<LoopbackListener> carrier_;
  LoopbackDialer carrying_{network_};
  std::unique_ptr<NcclListener> nccl_listener_;
  std::unique_ptr<NcclDialer> nccl_;
};

TEST_F(NcclSyncTest, WhatBothEngineRanksNeedIsBroadcastAndEveryByteLeavesTheTrainerOnce) {
  for (const int trainer_ranks : {1, 2}) {
    Start(trainer_ranks);
    const Plan plan = MakePlan(on_device_->source().layout(), receiver_options_.layout,
                               {.bucket_bytes = options_.bucket_bytes, .twins = true})
                          .value();
    std::uint64_t once = 0;
    int casts = 0;
    for (std::uint32_t b = 0; b < plan.buckets.size(); b += CountTwins(plan, b)) {
      once += static_cast<std::uint64_t>(plan.buckets[b].payload_bytes);
      casts += CountTwins(plan, b) > 1 ? 1 : 0;
    }
    ASSERT_GT(casts, 0);
    for (std::uint32_t step = 1; step <= 3; ++step) {
      FakeCuda::SetSeed(step);
      FakeNccl::SetSeed(step);
      const FakeNcclCensus before = FakeNccl::Census();

      const PublishReport report = Step(step);

      ExpectLive(report);
      EXPECT_EQ(report.replicas[0].transport, TransportKind::kNccl);
      EXPECT_EQ(FakeNccl::Census().broadcasts - before.broadcasts, casts);
      EXPECT_EQ(FakeNccl::Census().bytes_sent - before.bytes_sent, once) << "frames are moved as far as they are full";
    }
  }
}

// Whichever call it is, of sender or receiver, at once or some time later.
TEST_F(NcclSyncTest, AFailureOfAnyCallEndsTheSessionByNameAndTheVersionGoesLiveAnotherWay) {
  struct Case {
    const char* function;
    int nth;
    int error;
    const char* reason;
  };
  const Case cases[] = {{"ncclGetUniqueId", 1, ncclInternalError, "nccl_error"},
                        {"ncclCommInitRankConfig", 2, ncclInternalError, "nccl_error"},
                        {"ncclCommRegister", 3, ncclUnhandledCudaError, "nccl_cuda_error"},
                        {"ncclRecv", 2, ncclInvalidUsage, "nccl_invalid_usage"},
                        {"ncclGroupEnd", 3, ncclInternalError, "nccl_error"},
                        {"ncclBroadcast", 2, ncclInternalError, "nccl_error"},
                        {"ncclSend", 3, FakeNccl::kAsynchronous + ncclRemoteError, "nccl_remote_error"}};
  for (const Case& fault : cases) {
    SCOPED_TRACE(fmt::format("{} {} {}", fault.function, fault.nth, fault.error));
    Start(/*trainer_ranks=*/1);
    FakeNccl::Fail(fault.function, fault.nth, fault.error);

    const PublishReport report = Step(7);

    ExpectLive(report);
    EXPECT_EQ(report.replicas[0].transport, TransportKind::kLoopback);
    EXPECT_FALSE(LastButOne().committed);
    EXPECT_EQ(LastButOne().why.reason(), fault.reason);
    EXPECT_EQ(LastButOne().version.number, report.version.number) << "the number was not used up";

    // Once whoever publishes no longer has it in mind, NCCL serves again.
    publisher_.reset();
    nccl_ = std::make_unique<NcclDialer>(FakeDevice(0), communicators_, carrying_);
    options_.transports = {nccl_.get()};
    publisher_ = WeightPublisher::Create(options_, on_device_->source()).value();
    const PublishReport next = Step(8);
    ExpectLive(next);
    EXPECT_EQ(next.replicas[0].transport, TransportKind::kNccl);
  }
}

// The trainer's device or an engine rank's, at its first communicator or at the second.
TEST_F(NcclSyncTest, WhereADeviceHasNoRoomForMoreCommunicatorsTheVersionGoesAnotherWayAndTheNextOneByNccl) {
  for (const auto& [crowded, room_for] : {std::pair(0, 0U), std::pair(0, 1U), std::pair(1, 0U), std::pair(2, 1U)}) {
    SCOPED_TRACE(fmt::format("device {}, room for {}", crowded, room_for));
    Start(/*trainer_ranks=*/1);
    const FakeNcclCensus before = FakeNccl::Census();
    auto others = FillDevice(FakeDevice(crowded), communicators_);
    ASSERT_GT(others.size(), 2U);
    others.resize(others.size() - room_for);

    const PublishReport report = Step(7);

    ExpectLive(report);
    EXPECT_EQ(report.replicas[0].transport, TransportKind::kLoopback);
    EXPECT_EQ(LastButOne().why.reason(), "nccl_too_many");
    EXPECT_EQ(LastButOne().version.number, report.version.number) << "the number was not used up";

    others.clear();
    EXPECT_EQ(FakeNccl::Census().communicators, before.communicators);
    EXPECT_EQ(FakeNccl::Census().registrations, before.registrations);
    publisher_.reset();
    nccl_ = std::make_unique<NcclDialer>(FakeDevice(0), communicators_, carrying_);
    options_.transports = {nccl_.get()};
    publisher_ = WeightPublisher::Create(options_, on_device_->source()).value();
    const PublishReport next = Step(8);
    ExpectLive(next);
    EXPECT_EQ(next.replicas[0].transport, TransportKind::kNccl);
  }
}

TEST_F(NcclSyncTest, WhereThereIsNoOtherWayAPublishThatFailsSaysWhyAndTheNextOneTriesNcclAgain) {
  Start(/*trainer_ranks=*/1, /*with_other_way=*/false);
  ASSERT_TRUE(Step(1).AllCommitted());
  const auto live = receiver_->status().live;
  FakeNccl::Fail("ncclSend", 2, ncclInternalError);

  const PublishReport failed = Step(2);

  EXPECT_EQ(failed.replicas[0].status.reason(), "nccl_error");
  EXPECT_EQ(receiver_->status().live, live);
  const PublishReport next = Step(3);
  ExpectLive(next);
  EXPECT_EQ(next.replicas[0].transport, TransportKind::kNccl);
}

// `packed` is the trainer's leave to change its tensors: not while they may have to be sent once more.
TEST_F(NcclSyncTest, ThePublisherReadsItsTensorsUntilTheOtherWayHasBroughtThem) {
  Start(/*trainer_ranks=*/2);
  FakeNccl::Fail("ncclBroadcast", 1, ncclInternalError);
  on_device_->Fill(5);
  trainer_->CopyFrom(on_device_->on_host());
  const auto handle = publisher_->Publish({.ready = {&on_device_->written()}}).value();
  ASSERT_TRUE(handle->WaitPacked(Deadline::After(Clock::Real(), std::chrono::minutes(1))).ok());

  on_device_->Fill(6);

  const auto report = handle->WaitCommitted(Deadline::After(Clock::Real(), std::chrono::minutes(1)));
  ASSERT_TRUE(report.ok());
  ExpectLive(*report);
  EXPECT_EQ(report->replicas[0].transport, TransportKind::kLoopback);
  on_device_->Settle();
}

}  // namespace
}  // namespace bascule
