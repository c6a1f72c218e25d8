// What a publish does when an engine refuses, damages, loses, stalls or dies, in every phase: the error names peer and
// phase, carries the engine's own text, and the next publish works.
#include "tests/unit/trainer_side/publisher_fixture.h"

namespace bascule {
namespace {

using testing::HasSubstr;

struct Fault {
  EngineStep step;
  std::string phase;
};

const Fault kFaults[] = {{EngineStep::kHello, "hello"},
                         {EngineStep::kOffer, "offer"},
                         {EngineStep::kBucket, "send"},
                         {EngineStep::kSeal, "verify"},
                         {EngineStep::kFlip, "flip"}};

std::string PhaseOf(const testing::TestParamInfo<Fault>& fault) { return fault.param.phase; }

class PublishFaultTest : public PublisherFixture, public testing::WithParamInterface<Fault> {
 protected:
  void ExpectNextPublishWorks() {
    engines_[0]->Play({});
    trainer_->Fill(5);
    EXPECT_TRUE(Publish().AllCommitted());
    ExpectEngineHoldsTrainersTensors(*engines_[0], 1);
  }
};

// C-029.
TEST_P(PublishFaultTest, TheEnginesOwnReasonAndTextReachTheTrainer) {
  AddEngine().Play({.step = GetParam().step, .deed = EngineDeed::kAbort});
  MakePublisher();

  const PublishReport report = Publish();

  const ReplicaReport& replica = report.replicas[0];
  EXPECT_EQ(replica.status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(replica.status.reason(), "scripted");
  EXPECT_THAT(replica.status.message(), HasSubstr("replica engine-0, " + GetParam().phase));
  EXPECT_THAT(replica.status.message(), HasSubstr("the engine's own text"));
  EXPECT_EQ(replica.phase, GetParam().phase);
  EXPECT_TRUE(engines_[0]->account().aborts.empty());
  ExpectNextPublishWorks();
}

TEST_P(PublishFaultTest, AVanishedEngineIsNoticedWithoutWaitingForTheDeadline) {
  options_.deadline = std::chrono::hours(10);
  options_.connect_timeout = std::chrono::hours(10);
  AddEngine().Play({.step = GetParam().step, .deed = EngineDeed::kVanish});
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas[0].status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(report.replicas[0].status.reason(), "peer_lost");
  EXPECT_THAT(report.replicas[0].status.message(), HasSubstr("replica engine-0, " + GetParam().phase));
  ExpectNextPublishWorks();
}

TEST_P(PublishFaultTest, TheOtherReplicasCommitAllTheSame) {
  AddEngine();
  AddEngine().Play({.step = GetParam().step, .deed = EngineDeed::kAbort});
  AddEngine();
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_FALSE(report.AllCommitted());
  EXPECT_TRUE(report.replicas[0].status.ok());
  EXPECT_EQ(report.replicas[1].status.reason(), "scripted");
  EXPECT_TRUE(report.replicas[2].status.ok());
  EXPECT_EQ(report.version.digest, ExpectedDigest());
}

INSTANTIATE_TEST_SUITE_P(Phases, PublishFaultTest, testing::ValuesIn(kFaults), PhaseOf);

class PublishDeadlineTest : public TimedPublisherFixture, public testing::WithParamInterface<Fault> {};

TEST_P(PublishDeadlineTest, AStalledEngineEndsThePublishAtTheDeadlineInThatPhase) {
  AddEngine().Play({.step = GetParam().step, .deed = EngineDeed::kStall});
  MakePublisher();
  const auto handle = Begin();
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.misdeeds > 0; }));

  const PublishReport report = AdvanceUntilEnded(*handle);

  EXPECT_EQ(report.replicas[0].status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(report.replicas[0].status.reason(), "deadline");
  EXPECT_THAT(report.replicas[0].status.message(), HasSubstr("replica engine-0, " + GetParam().phase));
  EXPECT_TRUE(handle->WaitPacked(Soon()).ok());
  engines_[0]->Play({});
  EXPECT_TRUE(Publish().AllCommitted());
}

INSTANTIATE_TEST_SUITE_P(Phases, PublishDeadlineTest, testing::ValuesIn(kFaults), PhaseOf);

class PublishRepairTest : public TimedPublisherFixture {
 protected:
  PublishRepairTest() {
    UseTrainer(/*ranks=*/2, /*rows=*/200);      // several buckets on each route
    options_.deadline = std::chrono::hours(1);  // no wait of these ends with it
  }
};

TEST_F(PublishRepairTest, EveryBucketDamagedOnceIsSentAgainAndCountsOnce) {
  AddEngine(/*engine_ranks=*/2).Play({.judge = [](std::uint32_t, std::uint32_t attempt) {
    return attempt == 0 ? BucketVerdict::kDamaged : BucketVerdict::kGood;
  }});
  MakePublisher();

  const PublishReport report = Publish();
  const int frames = engines_[0]->account().frames;
  engines_[0]->Play({});
  const PublishReport undamaged = Publish();

  EXPECT_TRUE(report.AllCommitted());
  EXPECT_EQ(report.version.digest, ExpectedDigest());
  EXPECT_EQ(frames, 2 * (engines_[0]->account().frames - frames));
  EXPECT_EQ(report.wire_bytes, 2 * undamaged.wire_bytes);
}

TEST_F(PublishRepairTest, ABucketDamagedTwiceEndsThePublish) {
  AddEngine().Play({.judge = [](std::uint32_t bucket, std::uint32_t) {
    return bucket == 1 ? BucketVerdict::kDamaged : BucketVerdict::kGood;
  }});
  MakePublisher();

  const PublishReport report = AdvanceUntilEnded(*Begin());

  EXPECT_EQ(report.replicas[0].status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(report.replicas[0].status.reason(), "bucket_damaged");
  EXPECT_THAT(report.replicas[0].status.message(), HasSubstr("bucket=1"));
  EXPECT_EQ(engines_[0]->live().number, 0U);
}

TEST_F(PublishRepairTest, MissingBucketsAreSentAgainAfterTheSeal) {
  AddEngine().Play({.lose = {0, 2}});
  MakePublisher();

  const PublishReport report = Publish();
  const int frames = engines_[0]->account().frames;
  engines_[0]->Play({});
  Publish();

  EXPECT_TRUE(report.AllCommitted());
  EXPECT_EQ(report.version.digest, ExpectedDigest());
  ExpectEngineHoldsTrainersTensors(*engines_[0], 1);
  EXPECT_EQ(frames, 2 + engines_[0]->account().frames - frames);
}

TEST_F(PublishRepairTest, BucketsMissingTwiceEndThePublish) {
  AddEngine().Play({.lose = {2}, .lose_always = true});
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas[0].status.reason(), "buckets_missing");
  EXPECT_EQ(report.replicas[0].phase, "seal");
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return !account.aborts.empty(); }));
  EXPECT_EQ(engines_[0]->account().aborts[0].reason(), "buckets_missing");
}

TEST_F(PublishRepairTest, AFencedBucketEndsThePublish) {
  AddEngine().Play({.judge = [](std::uint32_t, std::uint32_t) { return BucketVerdict::kFenced; }});
  MakePublisher();

  const PublishReport report = AdvanceUntilEnded(*Begin());

  EXPECT_EQ(report.replicas[0].status.code(), StatusCode::kAborted);
  EXPECT_EQ(report.replicas[0].status.reason(), "fenced");
  EXPECT_EQ(report.replicas[0].phase, "send");
}

class PublishPeerTest : public PublisherFixture {};

TEST_F(PublishPeerTest, AReplicaWhereNobodyListensFailsInConnectAndTheOthersCommit) {
  AddEngine();
  options_.replicas.push_back("nobody");
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_TRUE(report.replicas[0].status.ok());
  EXPECT_EQ(report.replicas[1].status.reason(), "peer_unreachable");
  EXPECT_EQ(report.replicas[1].phase, "connect");
  EXPECT_THAT(report.replicas[1].status.message(), HasSubstr("replica nobody, connect"));
}

TEST_F(PublishPeerTest, AnEngineThatRestartsBetweenPublishesIsDialledAgain) {
  AddEngine();
  MakePublisher();
  ASSERT_TRUE(Publish().AllCommitted());

  engines_.clear();
  engines_.push_back(
      std::make_unique<ScriptedEngine>(control_, network_, "engine-0", ShardedTrainer::EngineLayout(2), clock_));
  const PublishReport report = Publish();

  EXPECT_TRUE(report.AllCommitted());
  EXPECT_EQ(report.version.number, 2U);
  ExpectEngineHoldsTrainersTensors(*engines_[0], 2);
}

TEST_F(PublishPeerTest, WhatAnEngineSaysOfAnotherSessionDoesNotEndThisOne) {
  AddEngine().Play({.speaks_of_another_session = true});
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_TRUE(report.AllCommitted()) << report.replicas[0].status.ToString();
  ExpectEngineHoldsTrainersTensors(*engines_[0], 1);
}

TEST_F(PublishPeerTest, WhenAllReplicasFailPackedComesAllTheSame) {
  options_.replicas = {"nobody"};
  for (const Snapshot snapshot : {Snapshot::kNone, Snapshot::kHost}) {
    options_.snapshot = snapshot;
    MakePublisher();

    const auto handle = Begin();

    EXPECT_TRUE(handle->WaitPacked(Soon()).ok());
    EXPECT_FALSE(handle->WaitCommitted(Soon())->AllCommitted());
  }
}

// C-017.
TEST_F(PublishPeerTest, ATensorThatTheTrainerLacksIsFoundBeforeAByteMoves) {
  std::vector<TensorSpec> tensors = ShardedTrainer::WireTensors();
  tensors.push_back({.name = "up.weights", .dtype = DType::kBf16, .shape = {4, 4}});
  AddEngine(PlainLayout(tensors));
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas[0].status.reason(), "tensor_missing");
  EXPECT_EQ(report.replicas[0].phase, "plan");
  EXPECT_THAT(report.replicas[0].status.message(), HasSubstr("up.weights"));
  EXPECT_TRUE(engines_[0]->account().offers.empty());
}

TEST_F(PublishPeerTest, WithoutACommonTransportTheEnginesOfferIsNamed) {
  AddEngine();
  LoopbackNetwork elsewhere;
  LoopbackDialer stranger(elsewhere);
  options_.control = &control_;
  options_.transports = {&stranger};
  auto publisher = WeightPublisher::Create(options_, trainer_->Source());
  ASSERT_TRUE(publisher.ok());

  const auto report = (*(*publisher)->Publish({}))->WaitCommitted(Soon());

  EXPECT_EQ(report->replicas[0].status.reason(), "transport_unavailable");
  EXPECT_THAT(report->replicas[0].status.message(), HasSubstr("loopback:engine-0"));
}

}  // namespace
}  // namespace bascule
