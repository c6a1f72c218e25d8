// Full tensors gathered on trainer rank 0 and sent from there: the same version, in bounded memory, by the same rules.
#include <algorithm>
#include <random>

#include "tests/support/faulty_transport.h"
#include "tests/unit/trainer_side/group_fixture.h"

namespace bascule {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

class GatherTest : public GroupFixture {
 protected:
  GatherTest() {
    options_.gather = true;
    options_.credits = 2;
  }
  // The largest window of a plan with these options, worked out tensor by tensor.
  std::int64_t LargestWindow() const {
    std::int64_t largest = 0;
    std::int64_t bytes = 0;
    std::int64_t placed = 0;
    for (const TensorSpec& tensor : ShardedTrainer::WireTensors(trainer_->Rows())) {
      if (bytes + tensor.Bytes() > options_.credits * options_.bucket_bytes) bytes = placed = 0;
      bytes += tensor.Bytes();
      placed += (tensor.Bytes() + 63) / 64 * 64;
      largest = std::max(largest, placed);
    }
    return largest;
  }
  void ExpectAllCommitted(const std::vector<PublishReport>& reports) {
    for (const PublishReport& report : reports) {
      EXPECT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();
      EXPECT_EQ(report.version.digest, ExpectedDigest());
    }
  }
};

TEST_F(GatherTest, ManyTrainersReachAnyEngineThroughOneRankInTheMemoryOfOneWindow) {
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    ranks_.clear();
    engines_.clear();
    options_.replicas.clear();
    const auto ranks = static_cast<int>(2 + random() % 4);
    const auto rows = static_cast<std::int64_t>(6 + random() % 300);
    const auto engine_ranks = static_cast<int>(1 + random() % 2);
    SCOPED_TRACE(fmt::format("round={} ranks={} rows={} engine_ranks={}", round, ranks, rows, engine_ranks));
    world_size_ = ranks;
    UseTrainer(ranks, rows);
    options_.bucket_bytes = 4096 + 64 * static_cast<std::int64_t>(random() % 50);
    options_.snapshot = random() % 2 == 0 ? Snapshot::kNone : Snapshot::kHost;
    AddEngine(engine_ranks);
    MakeGroup();

    for (std::uint32_t step = 1; step <= 2; ++step) {
      trainer_->Fill(step);
      const std::vector<PublishReport> reports = PublishAll();

      ExpectAllCommitted(reports);
      EXPECT_EQ(reports[0].gather_window_bytes, LargestWindow());
      ExpectEngineHoldsTrainersTensors(*engines_[0], engine_ranks);
    }
    EXPECT_EQ(engines_[0]->account().connections, 1);
  }
}

TEST_F(GatherTest, TheEngineHearsOfOneSenderWithFullTensorsAndGetsEveryByteOnce) {
  UseGroup(3);
  const ScriptedEngine& engine = AddEngine(/*engine_ranks=*/2);
  MakeGroup();

  const std::vector<PublishReport> reports = PublishAll();

  ExpectAllCommitted(reports);
  EXPECT_THAT(engine.account().credits, SizeIs(2));  // a route for each engine rank
  EXPECT_EQ(reports[0].wire_bytes, engine.account().frame_bytes);
  std::int64_t payload_bytes = 0;
  for (int rank = 0; rank < 2; ++rank) {
    for (std::size_t t = 0; t < ShardedTrainer::WireTensors().size(); ++t) {
      payload_bytes += static_cast<std::int64_t>(trainer_->EngineBytes(2, rank, static_cast<int>(t)).size());
    }
  }
  EXPECT_EQ(reports[0].bytes, payload_bytes);
}

// C-031.
TEST_F(GatherTest, ReplicasOfSeveralKindsGetTheSameFullTensors) {
  UseGroup(3);
  AddEngine(/*engine_ranks=*/1);
  AddEngine(/*engine_ranks=*/2);
  MakeGroup();

  for (std::uint32_t step = 1; step <= 3; ++step) {
    trainer_->Fill(step);
    const std::vector<PublishReport> reports = PublishAll();

    ExpectAllCommitted(reports);
    EXPECT_LE(reports[0].gather_window_bytes, 3 * LargestWindow());
    ExpectEngineHoldsTrainersTensors(*engines_[0], 1);
    ExpectEngineHoldsTrainersTensors(*engines_[1], 2);
  }
}

TEST_F(GatherTest, AnEngineThatTakesFullTensorsOnlyGetsThemBesideOneThatDoesNot) {
  UseGroup(3);
  options_.gather = false;
  AddEngine(/*engine_ranks=*/1);
  AddEngine(/*engine_ranks=*/2);
  engines_[0]->TakeFullTensorsOnly();
  MakeGroup();

  for (std::uint32_t step = 1; step <= 2; ++step) {
    trainer_->Fill(step);
    ExpectAllCommitted(PublishAll());
    ExpectEngineHoldsTrainersTensors(*engines_[0], 1);
    ExpectEngineHoldsTrainersTensors(*engines_[1], 2);
  }
  EXPECT_THAT(engines_[0]->account().credits, SizeIs(1));
  EXPECT_THAT(engines_[1]->account().credits, SizeIs(6));
}

TEST_F(GatherTest, WithoutAWayForTheSlicesThePublishFailsByName) {
  UseGroup(2);
  AddEngine();
  LoopbackNetwork elsewhere;
  slices_ = *LoopbackListener::Create(elsewhere, "rank-0-slices");
  MakeGroup();

  for (const PublishReport& report : PublishAll()) {
    EXPECT_EQ(report.replicas[0].status.reason(), "transport_unavailable");
  }
  EXPECT_EQ(engines_[0]->live().number, 0U);
  ranks_.clear();
  slices_.reset();
}

TEST_F(GatherTest, DamageOnTheWayToRankZeroIsSentAgainAndDamageTwiceNamesTheRank) {
  UseGroup(3);
  AddEngine();
  const auto sound = std::move(slices_);
  slices_ = std::make_unique<FaultyListener>(
      *sound, FaultPlan{.frames = {{FaultKind::kCorrupt, /*at=*/0, /*offset=*/-1}, {FaultKind::kCorrupt, 3, -70}},
                        .route = Route{2, 0}});
  MakeGroup();
  ExpectAllCommitted(PublishAll());
  ExpectEngineHoldsTrainersTensors(*engines_[0], 1);
  ranks_.clear();
  slices_ = std::make_unique<FaultyListener>(
      *sound,
      FaultPlan{.frames = {{FaultKind::kCorrupt, 0, -1}, {FaultKind::kCorrupt, 1, -1}, {FaultKind::kCorrupt, 2, -1}},
                .route = Route{1, 0}});
  options_.credits = 1;
  MakeGroup();

  const std::vector<PublishReport> reports = PublishAll();

  EXPECT_EQ(reports[0].replicas[0].status.reason(), "bucket_damaged") << reports[0].replicas[0].status.ToString();
  EXPECT_THAT(reports[0].replicas[0].status.message(), HasSubstr("trainer rank 1"));
  EXPECT_EQ(engines_[0]->live().number, 1U);
  ranks_.clear();
}

TEST_F(GatherTest, WhatTheEngineFindsDamagedOrMissingIsGatheredAgain) {
  UseGroup(3);
  const ScriptedEngine& engine = AddEngine(/*engine_ranks=*/2);
  engines_[0]->Play({.judge =
                         [](std::uint32_t bucket, std::uint32_t attempt) {
                           return bucket % 3 == 0 && attempt == 0 ? BucketVerdict::kDamaged : BucketVerdict::kGood;
                         },
                     .lose = {1, 2, 7}});
  MakeGroup();

  const std::vector<PublishReport> reports = PublishAll();

  ExpectAllCommitted(reports);
  ExpectEngineHoldsTrainersTensors(engine, 2);
  EXPECT_LE(reports[0].gather_window_bytes, 3 * LargestWindow());
}

TEST_F(GatherTest, ARankThatGoesAwayInTheGatherEndsItByNameAndTheNextPublishWorks) {
  UseGroup(3);
  UseTrainer(3, /*rows=*/300);  // more windows than frames can hold
  AddEngine(/*engine_ranks=*/2);
  MakeGroup();
  ExpectAllCommitted(PublishAll());
  engines_[0]->Play({.hold = EngineStep::kBucket});
  auto handles = BeginAll();
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.holds >= 1; }));

  ranks_[2].reset();
  handles.pop_back();
  engines_[0]->Play({});
  const std::vector<PublishReport> reports = Reports(handles);

  for (const PublishReport& report : reports) {
    ASSERT_FALSE(report.AllCommitted());
    EXPECT_EQ(report.replicas[0].status.reason(), "rank_lost") << report.replicas[0].status.ToString();
    EXPECT_THAT(report.replicas[0].status.message(), HasSubstr("trainer rank 2"));
  }
  EXPECT_EQ(engines_[0]->live().number, 1U);
  ranks_[2] = MakeRank(2);
  trainer_->Fill(9);
  ExpectAllCommitted(PublishAll());
  ExpectEngineHoldsTrainersTensors(*engines_[0], 2);
}

TEST_F(GatherTest, AnEngineThatEndsInTheGatherLeavesTheNextPublishWhole) {
  UseGroup(3);
  AddEngine();
  MakeGroup();
  for (const EngineDeed deed : {EngineDeed::kAbort, EngineDeed::kVanish}) {
    engines_[0]->Play({.step = EngineStep::kBucket, .deed = deed});
    for (const PublishReport& report : PublishAll()) EXPECT_FALSE(report.AllCommitted());

    engines_[0]->Play({});
    trainer_->Fill(static_cast<std::uint32_t>(deed) + 3);
    ExpectAllCommitted(PublishAll());
    ExpectEngineHoldsTrainersTensors(*engines_[0], 1);
  }
}

TEST_F(GatherTest, AReplicaThatStandsStillDoesNotHoldUpTheOther) {
  UseGroup(2);
  AddEngine();
  AddEngine();
  engines_[0]->Play({.hold = EngineStep::kBucket});
  MakeGroup();

  const auto handles = BeginAll();
  ASSERT_TRUE(engines_[1]->WaitFor([](const auto& account) { return !account.seals.empty(); }));
  engines_[0]->Play({});
  const std::vector<PublishReport> reports = Reports(handles);

  ExpectAllCommitted(reports);
  for (const auto& engine : engines_) ExpectEngineHoldsTrainersTensors(*engine, 1);
}

TEST_F(GatherTest, NoRankReadsItsTensorsOnceThePublishIsPackedThere) {
  UseGroup(2);
  AddEngine();
  engines_[0]->Play({.hold = EngineStep::kFlip});
  MakeGroup();

  const auto handles = BeginAll();
  for (const auto& handle : handles) ASSERT_TRUE(handle->WaitPacked(Soon()).ok());
  trainer_->TakeMemoryAway();
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.holds == 1; }));
  engines_[0]->Play({});
  const std::vector<PublishReport> reports = Reports(handles);

  trainer_->GiveMemoryBack();
  ExpectAllCommitted(reports);
}

TEST_F(GatherTest, UnderPolicyAllOneReplicaThatFailsKeepsTheOtherFromFlipping) {
  UseGroup(3);
  options_.policy = PublishPolicy::kAll;
  AddEngine(/*engine_ranks=*/1);
  AddEngine(/*engine_ranks=*/2);
  MakeGroup();
  engines_[1]->Play({.step = EngineStep::kSeal, .deed = EngineDeed::kAbort});

  const std::vector<PublishReport> failed = PublishAll();
  engines_[1]->Play({});
  trainer_->Fill(7);
  const std::vector<PublishReport> next = PublishAll();

  EXPECT_EQ(failed[0].replicas[0].status.reason(), "replica_not_ready");
  for (const ReplicaReport& replica : failed[0].replicas) EXPECT_EQ(replica.state, ReplicaState::kAborted);
  ExpectAllCommitted(next);
  ExpectEngineHoldsTrainersTensors(*engines_[0], 1);
  ExpectEngineHoldsTrainersTensors(*engines_[1], 2);
}

TEST_F(GatherTest, TheRestGetsFullTensorsAfterTheCanary) {
  UseGroup(2);
  options_.policy = PublishPolicy::kCanary;
  std::uint64_t rest_at_gate = 1;
  options_.gate = [&](const CanaryView&) {
    rest_at_gate = engines_[1]->live().number;
    return OkStatus();
  };
  AddEngine(/*engine_ranks=*/1);
  AddEngine(/*engine_ranks=*/2);
  MakeGroup();

  const std::vector<PublishReport> reports = PublishAll();

  EXPECT_EQ(rest_at_gate, 0u);
  ExpectAllCommitted(reports);
  ExpectEngineHoldsTrainersTensors(*engines_[0], 1);
  ExpectEngineHoldsTrainersTensors(*engines_[1], 2);
}

TEST_F(GatherTest, RanksOfOneProcessAreGatheredWithoutAGroup) {
  UseTrainer(4, /*rows=*/200);
  AddEngine(/*engine_ranks=*/2);
  MakePublisher();

  const PublishReport report = Publish();

  ExpectAllCommitted({report});
  EXPECT_EQ(report.gather_window_bytes, LargestWindow());
  ExpectEngineHoldsTrainersTensors(*engines_[0], 2);
  EXPECT_THAT(engines_[0]->account().credits, SizeIs(2));
}

TEST_F(GatherTest, FullTensorsOfOneRankNeedNoGathering) {
  UseTrainer(1);
  AddEngine();
  MakePublisher();

  const PublishReport report = Publish();

  ExpectAllCommitted({report});
  EXPECT_EQ(report.gather_window_bytes, 0);
}

}  // namespace
}  // namespace bascule
