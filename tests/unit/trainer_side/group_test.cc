#include "tests/unit/trainer_side/group_fixture.h"

namespace bascule {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class TrainerGroupTest : public GroupFixture {};

struct GroupSetting {
  int trainer_ranks;
  int engine_ranks;
  int replicas;
  Snapshot snapshot;
};

class TrainerGroupSyncTest : public GroupFixture, public testing::WithParamInterface<GroupSetting> {};

TEST_P(TrainerGroupSyncTest, EveryRankSendsItsSlicesAndAllHearOfTheSameVersion) {
  UseGroup(GetParam().trainer_ranks);
  for (int i = 0; i < GetParam().replicas; ++i) AddEngine(GetParam().engine_ranks);
  options_.snapshot = GetParam().snapshot;
  MakeGroup();

  for (std::uint32_t step = 1; step <= 3; ++step) {
    trainer_->Fill(step);
    const std::vector<PublishReport> reports = PublishAll();

    for (const PublishReport& report : reports) {
      EXPECT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();
      EXPECT_EQ(report.version, (WeightVersion{.run = "base", .number = step, .digest = ExpectedDigest()}));
      ASSERT_THAT(report.replicas, SizeIs(GetParam().replicas));
      EXPECT_EQ(report.replicas[0].flip.version, report.version);
      EXPECT_EQ(report.bytes, reports[0].bytes);
      EXPECT_EQ(report.wire_bytes, reports[0].wire_bytes);
    }
    for (const auto& engine : engines_) ExpectEngineHoldsTrainersTensors(*engine, GetParam().engine_ranks);
  }
  for (const auto& engine : engines_) EXPECT_EQ(engine->account().connections, 1);
}

INSTANTIATE_TEST_SUITE_P(Settings, TrainerGroupSyncTest,
                         testing::Values(GroupSetting{2, 1, 1, Snapshot::kNone}, GroupSetting{3, 2, 1, Snapshot::kNone},
                                         GroupSetting{4, 2, 2, Snapshot::kNone}, GroupSetting{2, 2, 1, Snapshot::kHost},
                                         GroupSetting{3, 1, 2, Snapshot::kHost}),
                         [](const testing::TestParamInfo<GroupSetting>& setting) {
                           return fmt::format(
                               "{}Ranks{}EngineRanks{}Replicas{}", setting.param.trainer_ranks,
                               setting.param.engine_ranks, setting.param.replicas,
                               setting.param.snapshot == Snapshot::kNone ? "NoSnapshot" : "HostSnapshot");
                         });

TEST_F(TrainerGroupTest, EachByteCrossesOnceWhoeverSendsIt) {
  UseGroup(4);
  const ScriptedEngine& engine = AddEngine(/*engine_ranks=*/2);
  MakeGroup();

  const std::vector<PublishReport> reports = PublishAll();

  std::int64_t payload_bytes = 0;
  for (int rank = 0; rank < 2; ++rank) {
    for (std::size_t t = 0; t < ShardedTrainer::WireTensors().size(); ++t) {
      payload_bytes += static_cast<std::int64_t>(trainer_->EngineBytes(2, rank, static_cast<int>(t)).size());
    }
  }
  EXPECT_EQ(reports[0].bytes, payload_bytes);
  EXPECT_EQ(reports[0].wire_bytes, engine.account().frame_bytes);
}

TEST_F(TrainerGroupTest, BucketsThatGotLostAreSentAgainByTheRankThatHasThem) {
  UseGroup(3);
  const ScriptedEngine& engine = AddEngine();
  engines_[0]->Play({.lose = {0, 1, 2}});
  MakeGroup();

  const std::vector<PublishReport> reports = PublishAll();

  EXPECT_TRUE(reports[2].AllCommitted()) << reports[2].replicas[0].status.ToString();
  EXPECT_EQ(reports[0].version.digest, ExpectedDigest());
  ExpectEngineHoldsTrainersTensors(engine, 1);
  EXPECT_EQ(reports[0].wire_bytes, engine.account().frame_bytes);
}

TEST_F(TrainerGroupTest, APublishWaitsForItsRanksAndNamesThoseThatDoNotCome) {
  UseGroup(3);
  AddEngine();
  options_.deadline = std::chrono::milliseconds(200);
  ranks_.push_back(MakeRank(0));
  ranks_.push_back(MakeRank(2));

  const std::vector<PublishReport> reports = PublishAll();

  EXPECT_EQ(reports[0].replicas[0].status.reason(), "group_incomplete");
  EXPECT_THAT(reports[0].replicas[0].status.message(), HasSubstr("not there: trainer rank 1"));
  EXPECT_EQ(reports[0].replicas[0].phase, "group");
  EXPECT_THAT(engines_[0]->account().offers, IsEmpty());
  EXPECT_EQ(engines_[0]->live().number, 0U);
}

TEST_F(TrainerGroupTest, ARankThatComesLateHearsHowItsRoundEndedAndTheNextOneWorks) {
  UseGroup(2);
  AddEngine();
  MakeGroup();
  ASSERT_TRUE(PublishAll()[1].AllCommitted());

  const auto early = ranks_[0]->Publish({});
  ranks_[0]->Cancel();  // stands for a deadline
  const auto without = (*early)->WaitCommitted(Soon());
  const auto late = (*ranks_[1]->Publish({}))->WaitCommitted(Soon());

  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without->replicas[0].status.reason(), "cancelled");
  ASSERT_TRUE(late.ok());
  EXPECT_EQ(late->replicas[0].status, without->replicas[0].status);
  trainer_->Fill(7);
  EXPECT_TRUE(PublishAll()[1].AllCommitted());
  ExpectEngineHoldsTrainersTensors(*engines_[0], 1);
}

TEST_F(TrainerGroupTest, ARankThatGoesAwayInATransferEndsItEverywhereByNameAndTheNextPublishWorks) {
  UseGroup(3);
  AddEngine(/*engine_ranks=*/2);
  MakeGroup();
  ASSERT_TRUE(PublishAll()[0].AllCommitted());
  engines_[0]->Play({.hold = EngineStep::kBucket});
  auto handles = BeginAll();
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.holds >= 3; }));

  ranks_[2].reset();
  handles.pop_back();
  engines_[0]->Play({});
  const std::vector<PublishReport> reports = Reports(handles);

  for (const PublishReport& report : reports) {
    ASSERT_FALSE(report.AllCommitted());
    EXPECT_THAT(report.replicas[0].status.message(), HasSubstr("rank 2"));
  }
  EXPECT_EQ(engines_[0]->live().number, 1U);
  ranks_[2] = MakeRank(2);
  trainer_->Fill(9);
  for (const PublishReport& report : PublishAll()) {
    EXPECT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();
  }
  ExpectEngineHoldsTrainersTensors(*engines_[0], 2);
}

// C-023.
TEST_F(TrainerGroupTest, ARankThatLeavesAndComesBackInTheSameProcessIsToldTheLayoutAgain) {
  UseGroup(2);
  AddEngine();
  MakeGroup();
  ASSERT_TRUE(PublishAll()[0].AllCommitted());
  const auto alone = ranks_[1]->Publish({});
  ranks_[1]->Cancel();  // it leaves the group
  ASSERT_TRUE((*alone)->WaitCommitted(Soon()).ok());

  trainer_->Fill(8);
  const std::vector<PublishReport> reports = PublishAll();

  for (const PublishReport& report : reports) {
    EXPECT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();
  }
  ExpectEngineHoldsTrainersTensors(*engines_[0], 1);
}

// C-023.
TEST_F(TrainerGroupTest, RanksThatChangePlacesAndAnEngineOfAnotherCutArePlannedAnew) {
  UseGroup(3);
  AddEngine(/*engine_ranks=*/1);
  MakeGroup();
  ASSERT_TRUE(PublishAll()[0].AllCommitted());
  ranks_[1].reset();
  ranks_[2].reset();
  engines_[0].reset();

  ranks_[1] = MakeRank(1, /*part=*/2);
  ranks_[2] = MakeRank(2, /*part=*/1);
  engines_[0] = std::make_unique<ScriptedEngine>(control_, network_, "engine-0",
                                                 ShardedTrainer::EngineLayout(2, trainer_->Rows()), clock_);
  trainer_->Fill(23);

  for (const PublishReport& report : PublishAll()) {
    EXPECT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();
  }
  ExpectEngineHoldsTrainersTensors(*engines_[0], 2);
}

TEST_F(TrainerGroupTest, ARankThatCancelsEndsThePublishWithItsName) {
  UseGroup(2);
  AddEngine();
  engines_[0]->Play({.step = EngineStep::kBucket, .deed = EngineDeed::kStall});
  MakeGroup();
  const auto handles = BeginAll();
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.misdeeds >= 2; }));

  ranks_[1]->Cancel();
  const std::vector<PublishReport> reports = Reports(handles);

  EXPECT_EQ(reports[1].replicas[0].status.reason(), "cancelled");
  EXPECT_EQ(reports[0].replicas[0].status.reason(), "rank_lost");
  EXPECT_THAT(reports[0].replicas[0].status.message(), HasSubstr("trainer rank 1"));
}

TEST_F(TrainerGroupTest, AnEngineThatRefusesIsQuotedOnEveryRank) {
  UseGroup(2);
  AddEngine();
  engines_[0]->Play({.step = EngineStep::kSeal, .why = Status::DataLoss("scripted", "the engine's own text")});
  MakeGroup();

  for (const PublishReport& report : PublishAll()) {
    EXPECT_EQ(report.replicas[0].status.reason(), "scripted");
    EXPECT_EQ(report.replicas[0].phase, "verify");
    EXPECT_THAT(report.replicas[0].status.message(), HasSubstr("the engine's own text"));
  }
  engines_[0]->Play({});
  EXPECT_TRUE(PublishAll()[1].AllCommitted());
}

TEST_F(TrainerGroupTest, AnEngineThatDiesInATransferEndsItOnEveryRankAndComesBack) {
  UseGroup(3);
  AddEngine(/*engine_ranks=*/2);
  engines_[0]->Play({.step = EngineStep::kBucket, .deed = EngineDeed::kVanish});
  MakeGroup();

  for (const PublishReport& report : PublishAll()) {
    EXPECT_EQ(report.replicas[0].status.code(), StatusCode::kUnavailable) << report.replicas[0].status.ToString();
  }
  engines_[0]->Play({});
  EXPECT_TRUE(PublishAll()[2].AllCommitted());
  ExpectEngineHoldsTrainersTensors(*engines_[0], 2);
}

TEST_F(TrainerGroupTest, OneReplicaThatFailsLeavesTheOtherToTheGroup) {
  UseGroup(2);
  AddEngine();
  AddEngine();
  engines_[0]->Play({.step = EngineStep::kBucket, .deed = EngineDeed::kAbort});
  MakeGroup();

  for (const PublishReport& report : PublishAll()) {
    EXPECT_EQ(report.replicas[0].status.reason(), "scripted");
    EXPECT_TRUE(report.replicas[1].status.ok()) << report.replicas[1].status.ToString();
  }
  ExpectEngineHoldsTrainersTensors(*engines_[1], 1);
}

TEST_F(TrainerGroupTest, NoRankReadsItsTensorsOnceThePublishIsPackedThere) {
  UseGroup(2);
  AddEngine();
  engines_[0]->Play({.hold = EngineStep::kFlip});
  MakeGroup();
  const Hash256 digest = ExpectedDigest();

  const auto handles = BeginAll();
  for (const auto& handle : handles) ASSERT_TRUE(handle->WaitPacked(Soon()).ok());
  trainer_->TakeMemoryAway();
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.holds == 1; }));
  engines_[0]->Play({});
  const std::vector<PublishReport> reports = Reports(handles);

  trainer_->GiveMemoryBack();
  EXPECT_TRUE(reports[1].AllCommitted());
  EXPECT_EQ(reports[1].version.digest, digest);
}

TEST_F(TrainerGroupTest, PackedDoesNotComeOnAnyRankBeforeTheReplicaHasSealed) {
  UseGroup(2);
  AddEngine();
  engines_[0]->Play({.hold = EngineStep::kSeal});
  MakeGroup();

  const auto handles = BeginAll();
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.holds == 1; }));
  for (const auto& handle : handles) EXPECT_EQ(handle->WaitPacked(Deadline::At(clock_.Now())).reason(), "deadline");

  engines_[0]->Play({});
  EXPECT_TRUE(Reports(handles)[1].AllCommitted());
}

TEST_F(TrainerGroupTest, WithAHostSnapshotARankIsPackedBeforeItsBucketsAreSent) {
  UseGroup(2);
  AddEngine();
  engines_[0]->Play({.hold = EngineStep::kBucket});
  options_.snapshot = Snapshot::kHost;
  MakeGroup();
  const Hash256 digest = ExpectedDigest();

  const auto handles = BeginAll();
  for (const auto& handle : handles) ASSERT_TRUE(handle->WaitPacked(Soon()).ok());
  trainer_->TakeMemoryAway();
  engines_[0]->Play({});
  const std::vector<PublishReport> reports = Reports(handles);

  trainer_->GiveMemoryBack();
  EXPECT_TRUE(reports[1].AllCommitted());
  EXPECT_EQ(reports[1].version.digest, digest);
}

TEST_F(TrainerGroupTest, RanksThatPublishOtherNumbersAreToldSo) {
  UseGroup(2);
  AddEngine();
  MakeGroup();

  const auto handles = {*ranks_[0]->Publish({.number = 7}), *ranks_[1]->Publish({.number = 8})};
  const std::vector<PublishReport> reports = Reports(handles);

  EXPECT_EQ(reports[0].replicas[0].status.reason(), "version_differs");
  EXPECT_THAT(reports[1].replicas[0].status.message(), HasSubstr("trainer rank 1 publishes 8, trainer rank 0 7"));
  EXPECT_TRUE(PublishAll({.number = 9})[1].AllCommitted());
}

// C-032.
TEST_F(TrainerGroupTest, AProcessOfAnotherJobOrSizeOrRankIsRefusedWithBothValues) {
  UseGroup(2);
  AddEngine();
  ranks_.push_back(MakeRank(0));
  const auto refusal = [&](TrainerGroup group) {
    WeightPublisherOptions options = options_;
    options.replicas.clear();
    options.control = &control_;
    options.transports = {&dialer_};
    options.group = std::move(group);
    auto made = WeightPublisher::Create(std::move(options), PartOf(trainer_->Source(), 1));
    CHECK(made.ok());
    auto report = (*(*made)->Publish({}))->WaitCommitted(Soon());
    CHECK(report.ok());
    return report->replicas[0].status;
  };

  const Status job = refusal({.rank = 1, .world_size = 2, .leader = "rank-0", .name = "other"});
  const Status size = refusal({.rank = 2, .world_size = 5, .leader = "rank-0", .name = "job"});

  EXPECT_EQ(job.reason(), "wrong_group");
  EXPECT_THAT(job.message(), AllOf(HasSubstr("member=other"), HasSubstr("leader=job")));
  EXPECT_EQ(size.reason(), "wrong_group");
  EXPECT_THAT(size.message(), AllOf(HasSubstr("member=5"), HasSubstr("leader=2")));
}

TEST_F(TrainerGroupTest, ASecondProcessOfARankIsToldThatItIsTaken) {
  UseGroup(2);
  AddEngine();
  MakeGroup();
  ASSERT_TRUE(PublishAll()[0].AllCommitted());
  options_.deadline = std::chrono::milliseconds(200);
  const auto twin = MakeRank(1);

  const auto report = (*twin->Publish({}))->WaitCommitted(Soon());

  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->replicas[0].status.reason(), "rank_taken");
  EXPECT_TRUE(PublishAll()[1].AllCommitted());
}

TEST_F(TrainerGroupTest, RanksThatDifferInATensorAreNamedAndNothingIsSent) {
  UseGroup(2);
  AddEngine();
  ranks_.push_back(MakeRank(0));
  trainer_ = std::make_unique<ShardedTrainer>(/*trainer_ranks=*/2, /*rows=*/26);
  ranks_.push_back(MakeRank(1));

  const std::vector<PublishReport> reports = PublishAll();

  for (const PublishReport& report : reports) {
    EXPECT_EQ(report.replicas[0].status.reason(), "bad_layout");
    EXPECT_THAT(report.replicas[0].status.message(),
                AllOf(HasSubstr("tensor=embed"), HasSubstr("on trainer rank 0"), HasSubstr("on trainer rank 1")));
  }
  EXPECT_THAT(engines_[0]->account().offers, IsEmpty());
}

TEST_F(TrainerGroupTest, AMemberWaitsForALeaderThatComesLater) {
  UseGroup(2);
  AddEngine();
  auto member = MakeRank(1);
  const auto handle = member->Publish({});
  auto leader = MakeRank(0);

  const auto led = (*leader->Publish({}))->WaitCommitted(Soon());
  const auto report = (*handle)->WaitCommitted(Soon());

  ASSERT_TRUE(led.ok() && report.ok());
  EXPECT_TRUE(report->AllCommitted()) << report->replicas[0].status.ToString();
}

TEST_F(TrainerGroupTest, NothingIsLeftOfAGroupThatIsGone) {
  UseGroup(3);
  AddEngine(/*engine_ranks=*/2);
  MakeGroup();
  ASSERT_TRUE(PublishAll()[0].AllCommitted());
  ranks_.clear();
  engines_.clear();
  const std::size_t threads = RunningThreads();
  options_.replicas.clear();
  AddEngine(/*engine_ranks=*/2);
  MakeGroup();
  ASSERT_TRUE(PublishAll()[0].AllCommitted());

  ranks_.clear();
  engines_.clear();

  EXPECT_TRUE(Eventually([&] { return RunningThreads() <= threads; }, Soon()));
}

TEST_F(TrainerGroupTest, OptionsThatMakeNoGroupAreRefused) {
  UseGroup(2);
  AddEngine();
  const auto reason = [&](TrainerGroup group, int parts = 1) {
    WeightPublisherOptions options = options_;
    options.control = &control_;
    options.transports = {&dialer_};
    options.group = std::move(group);
    const TensorSource whole = trainer_->Source();
    return WeightPublisher::Create(std::move(options), parts == 1 ? PartOf(whole, 0) : trainer_->Source())
        .status()
        .reason();
  };

  EXPECT_EQ(reason({.rank = 2, .world_size = 2, .leader = "rank-0", .host = &control_}), "bad_options");
  EXPECT_EQ(reason({.rank = 0, .world_size = 0, .leader = "rank-0", .host = &control_}), "bad_options");
  EXPECT_EQ(reason({.rank = 0, .world_size = 2, .leader = "", .host = &control_}), "bad_options");
  EXPECT_EQ(reason({.rank = 0, .world_size = 2, .leader = "rank-0", .host = nullptr}), "bad_options");
  EXPECT_EQ(reason({.rank = 0, .world_size = 2, .leader = "rank-0", .host = &control_}, 2), "bad_options");
  EXPECT_EQ(reason({.rank = 0, .world_size = 2, .leader = "engine-0", .host = &control_}), "address_in_use");
}

}  // namespace
}  // namespace bascule
