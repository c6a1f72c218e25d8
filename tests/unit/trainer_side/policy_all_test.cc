// Policy `all` over four replicas of two ranks: who flips, who does not, and what is remembered, whatever fails when.
#include <set>

#include "tests/unit/trainer_side/held_journal.h"
#include "tests/unit/trainer_side/publisher_fixture.h"

namespace bascule {
namespace {

using testing::HasSubstr;

constexpr std::size_t kReplicas = 4;

class PolicyAllTest : public PublisherFixture {
 protected:
  PolicyAllTest() {
    options_.policy = PublishPolicy::kAll;
    options_.journal = &journal_;
    for (std::size_t i = 0; i < kReplicas; ++i) AddEngine(/*engine_ranks=*/2);
  }

  void ExpectLive(std::uint64_t number, const std::set<std::size_t>& but_for = {}) {
    for (std::size_t i = 0; i < kReplicas; ++i) {
      if (!but_for.contains(i)) {
        EXPECT_EQ(engines_[i]->live().number, number) << "engine " << i;
      }
    }
  }
  // A process that takes the place of one that was killed: other memory, base weights.
  void Restart(std::size_t replica) {
    engines_[replica].reset();
    engines_[replica] = std::make_unique<ScriptedEngine>(control_, network_, options_.replicas[replica],
                                                         ShardedTrainer::EngineLayout(2, trainer_->Rows()), clock_);
  }

  HeldJournal journal_;
};

TEST_F(PolicyAllTest, AllFlipOnceAllAreReadyAndTheJournalKnows) {
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_TRUE(report.AllCommitted());
  ExpectLive(1);
  for (const ReplicaReport& replica : report.replicas) EXPECT_EQ(replica.state, ReplicaState::kCommitted);
  ASSERT_TRUE(journal_.last());
  EXPECT_EQ(journal_.last()->version, report.version);
  EXPECT_EQ(journal_.last()->replicas, options_.replicas);
  EXPECT_TRUE(journal_.last()->finished());
}

TEST_F(PolicyAllTest, NobodyFlipsBeforeTheDecisionIsWrittenDown) {
  MakePublisher();
  journal_.Hold();
  const auto handle = Begin();
  ASSERT_TRUE(journal_.WaitUntilAllAreReady());

  ExpectLive(0);
  for (const auto& engine : engines_) EXPECT_EQ(engine->account().seals.size(), 1u);

  journal_.Release();
  EXPECT_TRUE(handle->WaitCommitted(Soon())->AllCommitted());
  ExpectLive(1);
}

TEST_F(PolicyAllTest, ADecisionThatCannotBeWrittenDownIsAnAbortForAll) {
  journal_.RefuseWith(Status::Unavailable("journal_failed", "no space left"));
  MakePublisher();

  const PublishReport report = Publish();

  ExpectLive(0);
  EXPECT_FALSE(journal_.last());
  for (std::size_t i = 0; i < kReplicas; ++i) {
    EXPECT_EQ(report.replicas[i].status.reason(), "journal_failed");
    EXPECT_EQ(report.replicas[i].state, ReplicaState::kAborted);
    ASSERT_TRUE(engines_[i]->WaitFor([](const auto& account) { return !account.aborts.empty(); }));
    EXPECT_EQ(engines_[i]->account().aborts[0].reason(), "journal_failed");
  }
  journal_.RefuseWith(OkStatus());
  EXPECT_TRUE(Publish().AllCommitted());
}

struct Fault {
  EngineStep step;
  std::string phase;
};

class PolicyAllFaultTest : public PolicyAllTest, public testing::WithParamInterface<Fault> {};

// C-019.
TEST_P(PolicyAllFaultTest, NobodyFlipsWhenOneDoesNotGetReadyAndTheOthersAreToldWho) {
  for (const EngineDeed deed : {EngineDeed::kAbort, EngineDeed::kVanish}) {
    engines_[2]->Play({.step = GetParam().step, .deed = deed});
    MakePublisher();

    const PublishReport report = Publish();

    ExpectLive(0);
    EXPECT_FALSE(journal_.last());
    EXPECT_EQ(report.replicas[2].phase, GetParam().phase);
    EXPECT_EQ(report.replicas[2].status.reason(), deed == EngineDeed::kAbort ? "scripted" : "peer_lost");
    for (const std::size_t other : {0, 1, 3}) {
      const ReplicaReport& replica = report.replicas[other];
      EXPECT_EQ(replica.state, ReplicaState::kAborted);
      EXPECT_EQ(replica.status.code(), StatusCode::kAborted);
      EXPECT_EQ(replica.status.reason(), "replica_not_ready");
      EXPECT_THAT(replica.status.message(), HasSubstr("engine-2"));
    }
  }
  engines_[2]->Play({});
  trainer_->Fill(5);
  EXPECT_TRUE(Publish().AllCommitted());
  for (const auto& engine : engines_) ExpectEngineHoldsTrainersTensors(*engine, 2);
}

INSTANTIATE_TEST_SUITE_P(Phases, PolicyAllFaultTest,
                         testing::Values(Fault{EngineStep::kHello, "hello"}, Fault{EngineStep::kOffer, "offer"},
                                         Fault{EngineStep::kBucket, "send"}, Fault{EngineStep::kSeal, "verify"}),
                         [](const auto& fault) { return fault.param.phase; });

TEST_F(PolicyAllTest, AReplicaThatIsSentToHearsWhyTheOthersGiveUp) {
  engines_[0]->Play({.step = EngineStep::kSeal, .deed = EngineDeed::kStall});
  engines_[2]->Play({.hold = EngineStep::kBucket});
  MakePublisher();
  const auto handle = Begin();
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.misdeeds == 1; }));
  ASSERT_TRUE(engines_[2]->WaitFor([](const auto& account) { return account.holds > 0; }));

  engines_[2]->Play({.step = EngineStep::kBucket, .deed = EngineDeed::kAbort});
  ASSERT_TRUE(handle->WaitCommitted(Soon()).ok());

  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return !account.aborts.empty(); }));
  EXPECT_EQ(engines_[0]->account().aborts[0].reason(), "replica_not_ready");
  EXPECT_THAT(engines_[0]->account().aborts[0].message(), HasSubstr("engine-2"));
}

TEST_F(PolicyAllTest, OneThatIsKilledBetweenVerifiedAndTheDecisionMakesItAnAbort) {
  engines_[0]->Play({.hold = EngineStep::kSeal});
  MakePublisher();
  const auto handle = Begin();
  ASSERT_TRUE(engines_[3]->WaitFor([](const auto& account) { return account.seals.size() == 1; }));
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.holds == 1; }));

  engines_[3].reset();
  const auto report = handle->WaitCommitted(Soon());
  engines_[0]->Play({});

  ASSERT_TRUE(report.ok());
  ExpectLive(0, {3});
  EXPECT_FALSE(journal_.last());
  EXPECT_EQ(report->replicas[3].status.reason(), "peer_lost");
  EXPECT_EQ(report->replicas[1].status.reason(), "replica_not_ready");
  EXPECT_THAT(report->replicas[1].status.message(), HasSubstr("engine-3"));
}

// C-055.
TEST_F(PolicyAllTest, OneThatIsKilledBetweenTheDecisionAndItsFlipMissesTheCommitAndIsToldSoWhenItIsBack) {
  MakePublisher();
  engines_[3]->Play({.step = EngineStep::kFlip, .deed = EngineDeed::kVanish});

  const PublishReport report = Publish();

  ExpectLive(1, {3});
  EXPECT_EQ(report.replicas[3].state, ReplicaState::kMissed);
  EXPECT_EQ(report.replicas[3].status.reason(), "peer_lost");
  EXPECT_EQ(journal_.last()->live, (std::set<std::string>{"engine-0", "engine-1", "engine-2"}));

  Restart(3);
  const PublishReport finished = Publish({.number = 1});

  EXPECT_TRUE(finished.AllCommitted());
  EXPECT_EQ(engines_[3]->account().required, std::vector<WeightVersion>{report.version});
  ExpectLive(1);
  ExpectEngineHoldsTrainersTensors(*engines_[3], 2);
  EXPECT_TRUE(journal_.last()->finished());
  for (const std::size_t other : {0, 1, 2}) {
    EXPECT_EQ(engines_[other]->account().offers.size(), 1u) << "sent nothing again";
  }
}

TEST_F(PolicyAllTest, TheNextVersionCatchesUpOneThatMissedACommit) {
  MakePublisher();
  engines_[3]->Play({.step = EngineStep::kFlip, .deed = EngineDeed::kAbort});
  ASSERT_EQ(Publish().replicas[3].state, ReplicaState::kMissed);
  engines_[3]->Play({});

  const PublishReport next = Publish();

  EXPECT_EQ(next.version.number, 2u);
  EXPECT_TRUE(next.AllCommitted());
  EXPECT_EQ(engines_[3]->account().required.size(), 1u);
  ExpectLive(2);
}

TEST_F(PolicyAllTest, NobodyLacksWhatTheWholeFleetHasGoneBackFrom) {
  MakePublisher();
  ASSERT_TRUE(Publish().AllCommitted());
  ASSERT_TRUE(publisher_->RollBack(std::nullopt, Soon()).ok());
  ExpectLive(0);
  publisher_.reset();  // and whoever comes next knows it from the journal

  MakePublisher();
  const PublishReport report = Publish();

  EXPECT_TRUE(report.AllCommitted());
  EXPECT_EQ(report.version.number, 2u) << "its number stays taken";
  for (const auto& engine : engines_) EXPECT_TRUE(engine->account().required.empty());
  EXPECT_FALSE(journal_.last()->taken_back);
}

TEST_F(PolicyAllTest, WhatTheFleetGoesForwardToAgainCounts) {
  MakePublisher();
  ASSERT_TRUE(Publish().AllCommitted());
  ASSERT_TRUE(publisher_->RollBack(std::nullopt, Soon()).ok());
  EXPECT_TRUE(journal_.last()->taken_back);

  ASSERT_TRUE(publisher_->RollBack(std::nullopt, Soon()).ok());

  ExpectLive(1);
  EXPECT_FALSE(journal_.last()->taken_back);
}

TEST_F(PolicyAllTest, ACancelAfterTheDecisionComesTooLate) {
  MakePublisher();
  journal_.Hold();
  const auto handle = Begin();
  ASSERT_TRUE(journal_.WaitUntilAllAreReady());

  publisher_->Cancel();
  journal_.Release();

  EXPECT_TRUE(handle->WaitCommitted(Soon())->AllCommitted());
  ExpectLive(1);
}

TEST_F(PolicyAllTest, ACancelBeforeTheDecisionLeavesEverybodyWhereItWas) {
  engines_[0]->Play({.step = EngineStep::kSeal, .deed = EngineDeed::kStall});
  MakePublisher();
  const auto handle = Begin();
  ASSERT_TRUE(engines_[3]->WaitFor([](const auto& account) { return account.seals.size() == 1; }));

  publisher_->Cancel();
  const auto report = handle->WaitCommitted(Soon());

  ASSERT_TRUE(report.ok());
  ExpectLive(0);
  for (const ReplicaReport& replica : report->replicas) EXPECT_EQ(replica.status.reason(), "cancelled");
}

// The publisher was killed after it had written the decision down.
class RestartedPublisherTest : public PolicyAllTest {
 protected:
  CommitDecision Decided() const {
    return {
        .version = {.run = "base", .number = 7, .digest = ExpectedDigest()}, .replicas = options_.replicas, .live = {}};
  }
};

TEST_F(RestartedPublisherTest, ADecisionThatNobodyCarriedOutTakesNobodyOutOfRotation) {
  journal_.Set(Decided());
  MakePublisher();

  const PublishReport report = Publish({.number = 7});

  EXPECT_TRUE(report.AllCommitted());
  for (const auto& engine : engines_) EXPECT_TRUE(engine->account().required.empty());
  ExpectLive(7);
  EXPECT_TRUE(journal_.last()->finished());
}

TEST_F(RestartedPublisherTest, ADecisionThatSomeCarriedOutIsFinishedWithTheOthersAlone) {
  journal_.Set(Decided());
  engines_[1]->SetLive(Decided().version);
  MakePublisher();

  const PublishReport report = Publish({.number = 7});

  EXPECT_TRUE(report.AllCommitted());
  ExpectLive(7);
  EXPECT_TRUE(engines_[1]->account().offers.empty());
  EXPECT_TRUE(engines_[1]->account().required.empty());
  for (const std::size_t other : {0, 2, 3}) {
    EXPECT_EQ(engines_[other]->account().required, std::vector<WeightVersion>{Decided().version});
  }
}

TEST_F(RestartedPublisherTest, OtherBytesUnderADecidedNumberAreRefused) {
  const CommitDecision decided = Decided();
  journal_.Set(decided);
  engines_[1]->SetLive(decided.version);
  trainer_->Fill(99);
  MakePublisher();

  const PublishReport report = Publish({.number = 7});

  EXPECT_EQ(report.replicas[1].status.reason(), "replica_not_ready") << "it has the number, but not these bytes";
  EXPECT_THAT(report.replicas[1].status.message(), HasSubstr("digest_mismatch"));
  EXPECT_EQ(engines_[1]->live(), decided.version);
  for (const std::size_t other : {0, 2, 3}) {
    EXPECT_EQ(report.replicas[other].status.reason(), "digest_mismatch");
    EXPECT_EQ(report.replicas[other].state, ReplicaState::kMissed);
    EXPECT_EQ(engines_[other]->live().number, 0u);
  }
}

TEST_F(RestartedPublisherTest, WhereAllInReachHaveADecidedNumberNothingIsPublishedUnderItAgain) {
  CommitDecision decided = Decided();
  decided.replicas.push_back("engine-that-left");
  journal_.Set(decided);
  for (const auto& engine : engines_) engine->SetLive(decided.version);
  trainer_->Fill(99);
  MakePublisher();

  const PublishReport report = Publish({.number = 7});

  for (const ReplicaReport& replica : report.replicas) {
    // The first that refuses it ends it for all, who are told whose refusal it was.
    EXPECT_THAT(replica.status.ToString(), HasSubstr("version_reused")) << replica.address;
    EXPECT_EQ(replica.state, ReplicaState::kAborted);
  }
  EXPECT_TRUE(report.version.digest.IsZero()) << "nobody has taken any bytes";
  ExpectLive(7);
  EXPECT_EQ(journal_.last()->version, decided.version);
  EXPECT_TRUE(Publish().AllCommitted()) << "the next number is free";
}

TEST_F(RestartedPublisherTest, AFreshNumberIsNeverThatOfTheDecision) {
  journal_.Set(Decided());
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_EQ(report.version.number, 8u);
  EXPECT_TRUE(report.AllCommitted());
  EXPECT_EQ(journal_.last()->version.number, 8u);
}

class PolicyAllDeadlineTest : public TimedPublisherFixture {
 protected:
  PolicyAllDeadlineTest() {
    options_.policy = PublishPolicy::kAll;
    for (int i = 0; i < 3; ++i) AddEngine(/*engine_ranks=*/2);
  }
};

TEST_F(PolicyAllDeadlineTest, AStalledReplicaEndsItForAllAtTheDeadline) {
  engines_[1]->Play({.step = EngineStep::kSeal, .deed = EngineDeed::kStall});
  MakePublisher();
  const auto handle = Begin();
  ASSERT_TRUE(engines_[1]->WaitFor([](const auto& account) { return account.misdeeds == 1; }));
  ASSERT_TRUE(engines_[2]->WaitFor([](const auto& account) { return account.seals.size() == 1; }));

  const PublishReport report = AdvanceUntilEnded(*handle);

  for (const std::size_t other : {0, 2}) {
    EXPECT_EQ(report.replicas[other].status.reason(), "replica_not_ready");
    EXPECT_THAT(report.replicas[other].status.message(), HasSubstr("engine-1"));
  }
  for (const auto& engine : engines_) EXPECT_EQ(engine->live().number, 0u);
  for (const ReplicaReport& replica : report.replicas) EXPECT_EQ(replica.state, ReplicaState::kAborted);
}

}  // namespace
}  // namespace bascule
