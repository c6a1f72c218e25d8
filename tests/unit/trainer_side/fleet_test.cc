// A publisher's fleet over loopback: who joins, is lost or comes back gets the fleet's version from the snapshot.
#include "tests/unit/trainer_side/held_journal.h"
#include "tests/unit/trainer_side/publisher_fixture.h"

namespace bascule {
namespace {

using testing::ElementsAre;

class FleetTest : public PublisherFixture {
 protected:
  FleetTest() {
    options_.run = "base";
    options_.snapshot = Snapshot::kHost;
    options_.catch_up = true;
  }

  // An engine that the publisher does not know of; `listed` is left alone.
  ScriptedEngine& AddStranger() {
    AddEngine(/*engine_ranks=*/2);
    options_.replicas.pop_back();
    return *engines_.back();
  }
  std::string AddressOf(std::size_t engine) const { return "engine-" + std::to_string(engine); }
  FleetWelcome Join(std::size_t engine, std::uint64_t instance = 1) {
    const WeightVersion live = engines_[engine]->live();
    const auto welcome = publisher_->Join({.address = AddressOf(engine),
                                           .instance = {instance},
                                           .live = live.number == 0 ? WeightVersion{} : live,
                                           .ready = live.number != 0});
    CHECK(welcome.ok());
    return *welcome;
  }
  FleetRow Row(std::size_t engine) {
    for (const FleetRow& row : publisher_->status().fleet) {
      if (row.address == AddressOf(engine)) return row;
    }
    return {};
  }
  bool WaitForLive(std::size_t engine, const WeightVersion& version) {
    return Eventually([&] { return engines_[engine]->live() == version && Row(engine).state == "committed"; },
                      Deadline::After(Clock::Real(), std::chrono::seconds(60)));
  }
};

// C-052.
TEST_F(FleetTest, WhoJoinsAfterAPublishGetsItsVersionFromTheSnapshotAndNobodyElseIsSentAnything) {
  AddEngine(/*engine_ranks=*/2);
  AddStranger();
  MakePublisher();
  const PublishReport report = Publish();
  ASSERT_TRUE(report.AllCommitted());
  const std::vector<std::vector<std::byte>> published = trainer_->WireBytes();
  const std::vector<std::byte> expected = trainer_->EngineBytes(2, 0, 0);
  trainer_->Fill(99);  // the trainer goes on

  const FleetWelcome welcome = Join(1);

  EXPECT_EQ(welcome.required, report.version);
  EXPECT_TRUE(welcome.publisher_sends);
  EXPECT_THAT(welcome.holders, ElementsAre("engine-0"));
  ASSERT_TRUE(WaitForLive(1, report.version));
  EXPECT_EQ(engines_[1]->Live(0, 0), expected);
  EXPECT_EQ(engines_[0]->account().offers.size(), 1u);
  EXPECT_FALSE(Join(1).required);
}

// C-052.
TEST_F(FleetTest, WhoJoinsDuringAPublishEndsAtItsVersion) {
  AddEngine(/*engine_ranks=*/2).Play({.hold = EngineStep::kFlip});
  AddStranger();
  MakePublisher();
  const auto handle = Begin();
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.holds == 1; }));

  EXPECT_FALSE(Join(1).required) << "the fleet has committed nothing yet";
  engines_[0]->Play({});

  const auto report = handle->WaitCommitted(Soon());
  ASSERT_TRUE(report.ok() && report->AllCommitted());
  EXPECT_TRUE(WaitForLive(1, report->version));
  EXPECT_EQ(engines_[0]->account().offers.size(), 1u);
}

TEST_F(FleetTest, WhoHasJoinedTakesPartInTheNextPublish) {
  AddEngine(/*engine_ranks=*/2);
  AddStranger();
  MakePublisher();
  Join(1);

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas.size(), 2u);
  EXPECT_TRUE(report.AllCommitted());
  publisher_->Leave(AddressOf(1), InstanceId{1});
  EXPECT_EQ(Publish().replicas.size(), 1u);
}

TEST_F(FleetTest, AFleetMayBeginEmptyAndTheFirstToJoinGetsTheVersion) {
  options_.snapshot = Snapshot::kTensorsStay;
  AddStranger();
  AddStranger();
  MakePublisher();
  const PublishReport report = Publish({.number = 5});
  EXPECT_TRUE(report.replicas.empty());

  EXPECT_EQ(Join(0).required, (WeightVersion{.run = "base", .number = 5, .digest = {}}));

  const WeightVersion version{.run = "base", .number = 5, .digest = ExpectedDigest()};
  ASSERT_TRUE(WaitForLive(0, version));
  EXPECT_EQ(publisher_->status().committed, version) << "with its digest, now that it is known";
  Join(1);
  EXPECT_TRUE(WaitForLive(1, version));
}

// Replicas that have joined since may have been told that they lack it.
TEST_F(FleetTest, TheNumberOfAVersionThatReachedNobodyIsNotGivenAgain) {
  options_.snapshot = Snapshot::kTensorsStay;
  AddStranger();
  MakePublisher();
  ASSERT_TRUE(Publish({.number = 5}).replicas.empty());

  EXPECT_EQ(Publish().version.number, 6u);
}

// Nobody was there to say that the number is taken.
TEST_F(FleetTest, WhatWasDecidedWithOtherBytesIsSentToALateReplicaOnceAndNeverAgain) {
  HeldJournal journal;
  ASSERT_TRUE(journal.Decide({.run = "base", .number = 5, .digest = {{std::byte{1}}}}, {"engine-0"}).ok());
  options_.policy = PublishPolicy::kAll;
  options_.journal = &journal;
  options_.snapshot = Snapshot::kTensorsStay;
  options_.fleet.first_retry = std::chrono::milliseconds(1);
  AddStranger();
  MakePublisher();
  ASSERT_TRUE(Publish({.number = 5}).replicas.empty());
  ASSERT_TRUE(Join(0).publisher_sends);

  ASSERT_TRUE(Eventually([&] { return !Join(0).publisher_sends; }, Soon()));

  EXPECT_EQ(Row(0).last_error.reason(), "stale_version");
  EXPECT_EQ(engines_[0]->live().number, 0u);
  const PublishReport next = Publish();
  EXPECT_TRUE(next.AllCommitted());
  EXPECT_EQ(next.version.number, 6u);
  publisher_.reset();  // it uses the journal
}

TEST_F(FleetTest, WhoJoinsAfterAPublishThatReachedNobodyGetsItsBytesAndNoOlderOnes) {
  AddStranger();
  AddStranger();
  MakePublisher();
  Join(0);
  ASSERT_TRUE(Publish().AllCommitted());
  publisher_->Leave(AddressOf(0), InstanceId{1});
  trainer_->Fill(7);
  const WeightVersion version{.run = "base", .number = 2, .digest = ExpectedDigest()};
  const std::vector<std::byte> expected = trainer_->EngineBytes(2, 0, 0);
  ASSERT_TRUE(Publish({.number = 2}).replicas.empty());
  trainer_->Fill(99);  // the trainer goes on

  Join(1);

  ASSERT_TRUE(WaitForLive(1, version));
  EXPECT_EQ(engines_[1]->Live(0, 0), expected);
}

// The snapshot has other bytes by then, whatever became of the publish that brought them.
TEST_F(FleetTest, ANumberThatIsPublishedOnceMoreDoesNotPassForTheVersionThatWasCommitted) {
  AddEngine(/*engine_ranks=*/2);
  AddStranger();
  MakePublisher();
  const PublishReport report = Publish({.number = 5});
  ASSERT_TRUE(report.AllCommitted());
  trainer_->Fill(7);
  engines_[0]->Play({.step = EngineStep::kOffer, .deed = EngineDeed::kAbort});
  ASSERT_FALSE(Publish({.number = 5}).AllCommitted());

  const FleetWelcome welcome = Join(1);

  EXPECT_EQ(welcome.required, report.version);
  EXPECT_FALSE(welcome.publisher_sends);
  EXPECT_THAT(welcome.holders, ElementsAre("engine-0"));
}

// A publisher that starts anew must find the number taken, also where nobody that has the version can be reached.
TEST_F(FleetTest, UnderAllAVersionThatReachedNobodyIsWrittenDownBeforeTheFirstFlipsToIt) {
  HeldJournal journal;
  options_.policy = PublishPolicy::kAll;
  options_.journal = &journal;
  options_.snapshot = Snapshot::kTensorsStay;
  options_.fleet.first_retry = std::chrono::milliseconds(1);
  AddStranger();
  AddStranger();
  MakePublisher();
  ASSERT_TRUE(Publish({.number = 5}).replicas.empty());
  EXPECT_FALSE(journal.last());
  journal.RefuseWith(Status::Unavailable("journal_failed", "no space left"));
  Join(0);
  ASSERT_TRUE(Eventually([&] { return Row(0).last_error.reason() == "journal_failed"; }, Soon()));
  EXPECT_EQ(engines_[0]->live().number, 0u);

  journal.RefuseWith(OkStatus());

  const WeightVersion version{.run = "base", .number = 5, .digest = ExpectedDigest()};
  ASSERT_TRUE(WaitForLive(0, version));
  ASSERT_TRUE(journal.last());
  EXPECT_EQ(journal.last()->version, version);
  EXPECT_THAT(journal.last()->replicas, ElementsAre("engine-0")) << "nobody else was ready";
  Join(1);
  ASSERT_TRUE(WaitForLive(1, version));
  EXPECT_EQ(journal.last()->live, (std::set<std::string>{"engine-0", "engine-1"}));
  EXPECT_EQ(journal.last()->version, version);
  publisher_.reset();  // it uses the journal
}

TEST_F(FleetTest, AVersionThatReachedNobodyAndWhoseBytesNobodyKeepsIsNotCommitted) {
  AddStranger();
  MakePublisher();

  ASSERT_TRUE(Publish({.number = 5}).replicas.empty());

  EXPECT_FALSE(publisher_->status().committed);
  EXPECT_FALSE(Join(0).required) << "nobody could send it";
  const PublishReport next = Publish({.number = 6});
  EXPECT_TRUE(next.AllCommitted());
  EXPECT_EQ(publisher_->status().committed, next.version);
}

TEST_F(FleetTest, OneThatItsOperatorTookBackIsSentTheFleetsVersionAgain) {
  AddEngine(/*engine_ranks=*/2);
  AddEngine(/*engine_ranks=*/2);
  MakePublisher();
  const PublishReport first = Publish();
  const PublishReport second = Publish();
  ASSERT_TRUE(second.AllCommitted());

  engines_[0]->SetLive(first.version);
  EXPECT_EQ(Join(0).required, second.version);

  EXPECT_TRUE(WaitForLive(0, second.version));
  EXPECT_EQ(engines_[0]->account().offers.size(), 3u);
  EXPECT_EQ(engines_[1]->account().offers.size(), 2u);
}

TEST_F(FleetTest, OneThatMissedACommitIsCaughtUpBetweenPublishes) {
  options_.policy = PublishPolicy::kAll;
  options_.fleet.first_retry = std::chrono::milliseconds(1);
  AddEngine(/*engine_ranks=*/2);
  AddEngine(/*engine_ranks=*/2).Play({.step = EngineStep::kFlip, .deed = EngineDeed::kVanish});
  MakePublisher();
  const PublishReport report = Publish();
  ASSERT_EQ(report.replicas[1].state, ReplicaState::kMissed);

  engines_[1]->Play({});

  EXPECT_TRUE(WaitForLive(1, report.version));
  EXPECT_EQ(engines_[1]->account().required.back(), report.version);
}

TEST_F(FleetTest, ACatchUpGivesWayToTheNextPublish) {
  AddEngine(/*engine_ranks=*/2);
  AddStranger().Play({.step = EngineStep::kSeal, .deed = EngineDeed::kStall});
  MakePublisher();
  ASSERT_TRUE(Publish().AllCommitted());
  Join(1);
  ASSERT_TRUE(engines_[1]->WaitFor([](const auto& account) { return account.misdeeds == 1; }));
  engines_[1]->Play({});
  trainer_->Fill(7);

  const PublishReport report = Publish();

  EXPECT_TRUE(report.AllCommitted());
  EXPECT_EQ(report.version.number, 2u);
  ASSERT_TRUE(engines_[1]->WaitFor([](const auto& account) { return !account.aborts.empty(); }));
  EXPECT_EQ(engines_[1]->account().aborts.at(0).reason(), "superseded");
  ExpectEngineHoldsTrainersTensors(*engines_[1], 2);
}

TEST_F(FleetTest, TheWholeFleetGoesBackAndWhoJoinsThenIsToldWhoHasThatVersion) {
  AddEngine(/*engine_ranks=*/2);
  AddEngine(/*engine_ranks=*/2);
  AddStranger();
  MakePublisher();
  const PublishReport first = Publish();
  ASSERT_TRUE(Publish().AllCommitted());

  const auto rollback = publisher_->RollBack(std::nullopt, Soon());

  ASSERT_TRUE(rollback.ok()) << rollback.status().ToString();
  EXPECT_EQ(rollback->version, first.version);
  for (const std::size_t engine : {0, 1}) {
    EXPECT_EQ(engines_[engine]->live(), first.version);
    EXPECT_EQ(engines_[engine]->account().rollbacks.at(0).why.reason(), "fleet_rollback");
  }
  const FleetWelcome welcome = Join(2);
  EXPECT_EQ(welcome.required, first.version);
  EXPECT_FALSE(welcome.publisher_sends) << "the snapshot has what the fleet went back from";
  EXPECT_THAT(welcome.holders, ElementsAre("engine-0", "engine-1"));
  EXPECT_EQ(Publish().version.number, 3u) << "numbers are never reused";
}

TEST_F(FleetTest, NobodyGoesBackWhereOneCannot) {
  AddEngine(/*engine_ranks=*/2);
  AddEngine(/*engine_ranks=*/2);
  MakePublisher();
  ASSERT_TRUE(Publish().AllCommitted());
  const WeightVersion live = engines_[0]->live();

  EXPECT_EQ(publisher_->RollBack(7, Soon()).status().reason(), "version_not_kept");
  engines_[1].reset();
  engines_[1] = std::make_unique<ScriptedEngine>(control_, network_, "engine-1",
                                                 ShardedTrainer::EngineLayout(2, trainer_->Rows()), clock_);
  EXPECT_EQ(publisher_->RollBack(std::nullopt, Soon()).status().reason(), "no_kept_version");

  EXPECT_EQ(engines_[0]->live(), live);
}

// C-055.
TEST_F(FleetTest, AnEngineThatIsRestartedAtItsAddressIsDialledAnewAndTheOthersConnectionsStay) {
  options_.catch_up = false;
  AddEngine(/*engine_ranks=*/2);
  AddEngine(/*engine_ranks=*/2);
  MakePublisher();
  ASSERT_TRUE(Publish().AllCommitted());
  engines_[1].reset();
  engines_[1] = std::make_unique<ScriptedEngine>(control_, network_, "engine-1",
                                                 ShardedTrainer::EngineLayout(2, trainer_->Rows()), clock_);

  EXPECT_TRUE(Publish().AllCommitted());

  EXPECT_EQ(engines_[0]->account().connections, 1);
  EXPECT_EQ(engines_[1]->account().connections, 1);
  ExpectEngineHoldsTrainersTensors(*engines_[1], 2);
}

TEST_F(FleetTest, WithoutCatchUpNobodyJoins) {
  options_.catch_up = false;
  AddEngine(/*engine_ranks=*/2);
  MakePublisher();

  EXPECT_EQ(publisher_->Join({.address = "x", .instance = {1}}).status().reason(), "no_fleet");
}

class FlappingTest : public TimedPublisherFixture {};

// C-053.
TEST_F(FlappingTest, AReplicaThatIsNeverThereIsTriedLessAndLessWhileTheOthersGoOn) {
  options_.run = "base";
  options_.snapshot = Snapshot::kHost;
  options_.catch_up = true;
  AddEngine(/*engine_ranks=*/2);
  options_.replicas.emplace_back("nobody");
  MakePublisher();
  int tried = 0;
  for (int i = 0; i < 10; ++i) {
    const PublishReport report = Publish();
    EXPECT_TRUE(report.replicas[0].status.ok());
    tried += static_cast<int>(report.replicas.size()) - 1;
  }

  EXPECT_LE(tried, options_.fleet.failures_before_rest);
  EXPECT_EQ(publisher_->status().fleet[1].state, "resting");
}

}  // namespace
}  // namespace bascule
