#include "tests/e2e/sync/sync_fixture.h"
#include "tests/support/process_census.h"

namespace bascule {
namespace {

struct Setting {
  int trainer_ranks;
  int engine_ranks;
  bool shm;
  Snapshot snapshot;
};

class SyncTest : public SyncFixture, public testing::WithParamInterface<Setting> {};

TEST_P(SyncTest, EveryVersionGoesLiveWithTheDigestOfTheTrainersTensors) {
  GetParam().shm ? UseShm() : UseLoopback();
  options_.snapshot = GetParam().snapshot;
  StartEngine(GetParam().engine_ranks);
  StartTrainer(GetParam().trainer_ranks);

  for (std::uint32_t step = 1; step <= 3; ++step) {
    trainer_->Fill(step);
    const PublishReport report = Publish();

    ExpectLive(report);
    EXPECT_EQ(report.version.number, step);
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, SyncTest,
                         testing::Values(Setting{1, 1, false, Snapshot::kNone}, Setting{2, 1, false, Snapshot::kHost},
                                         Setting{3, 2, false, Snapshot::kNone}, Setting{2, 2, true, Snapshot::kNone},
                                         Setting{1, 1, true, Snapshot::kHost}),
                         [](const testing::TestParamInfo<Setting>& setting) {
                           return fmt::format(
                               "{}TrainerRanks{}EngineRanks{}{}", setting.param.trainer_ranks,
                               setting.param.engine_ranks, setting.param.shm ? "Shm" : "Loopback",
                               setting.param.snapshot == Snapshot::kNone ? "NoSnapshot" : "HostSnapshot");
                         });

class SyncProcessTest : public SyncFixture {};

// C-091.
TEST_F(SyncProcessTest, TwoHundredPublishesOverShmLeaveNothingBehind) {
  UseShm();
  StartEngine(/*engine_ranks=*/2);
  StartTrainer(/*trainer_ranks=*/2);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Publish().AllCommitted());
  const std::size_t descriptors = OpenDescriptors();
  const std::size_t threads = RunningThreads();
  const std::size_t arenas = MappingsOf("memfd");

  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Publish().AllCommitted());

  EXPECT_LE(OpenDescriptors(), descriptors);
  EXPECT_EQ(MappingsOf("memfd"), arenas);
  EXPECT_TRUE(Eventually([&] { return RunningThreads() <= threads; },
                         Deadline::After(Clock::Real(), std::chrono::seconds(10))));
}

// C-023.
TEST_F(SyncProcessTest, AnEngineThatIsGoneIsNamedAndItsSuccessorGetsTheNextVersion) {
  UseLoopback();
  StartEngine(1);
  StartTrainer(1);
  ASSERT_TRUE(Publish().AllCommitted());

  StopEngine();
  const PublishReport lost = Publish();
  StartEngine(2);
  const PublishReport found = Publish();

  EXPECT_EQ(lost.replicas[0].status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(lost.replicas[0].status.message(), testing::HasSubstr("replica engine"));
  ExpectLive(found);
}

TEST_F(SyncProcessTest, AReusedNumberLeavesTheEngineAsItWas) {
  UseLoopback();
  StartEngine(1);
  StartTrainer(1);
  const PublishReport first = Publish({.number = 5});
  ASSERT_TRUE(first.AllCommitted());

  trainer_->Fill(77);
  const PublishReport reused = Publish({.number = 5});

  EXPECT_EQ(reused.replicas[0].status.reason(), "version_reused");
  EXPECT_EQ(receiver_->status().live, first.version);
  const PublishReport next = Publish();
  EXPECT_EQ(next.version.number, 6U);
  ExpectLive(next);
}

TEST_F(SyncProcessTest, AnotherModelIsRefusedInTheEnginesWords) {
  UseLoopback();
  receiver_options_.model = "LlamaForCausalLM layers=2";
  options_.model = "LlamaForCausalLM layers=3";
  StartEngine(1);
  StartTrainer(1);

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas[0].status.reason(), "wrong_model");
  EXPECT_THAT(report.replicas[0].status.message(), testing::HasSubstr("layers=2"));
}

}  // namespace
}  // namespace bascule
