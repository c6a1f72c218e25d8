// Policy `canary`: what the gate sees, and what becomes of the canary and of the rest.
#include "tests/unit/trainer_side/publisher_fixture.h"

namespace bascule {
namespace {

using testing::HasSubstr;

class CanaryTest : public PublisherFixture {
 protected:
  CanaryTest() {
    options_.policy = PublishPolicy::kCanary;
    options_.gate = [this](const CanaryView& view) {
      views_.push_back(view);
      rest_at_gate_ = engines_[1]->live().number;
      return verdict_;
    };
    for (int i = 0; i < 3; ++i) AddEngine(/*engine_ranks=*/2);
  }

  Status verdict_;
  std::vector<CanaryView> views_;
  std::uint64_t rest_at_gate_ = 0;
};

TEST_F(CanaryTest, TheRestFollowsACanaryThatPasses) {
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_TRUE(report.AllCommitted());
  ASSERT_EQ(views_.size(), 1u);
  EXPECT_EQ(views_[0].address, "engine-0");
  EXPECT_EQ(views_[0].flip.version, report.version);
  EXPECT_EQ(views_[0].previous, (WeightVersion{.run = "base", .number = 0, .digest = {}}));
  EXPECT_EQ(rest_at_gate_, 0u) << "the rest waits for the gate";
  for (const auto& engine : engines_) ExpectEngineHoldsTrainersTensors(*engine, 2);
}

TEST_F(CanaryTest, ARefusedCanaryGoesBackByItselfAndTheRestNeverSeesTheVersion) {
  MakePublisher();
  ASSERT_TRUE(Publish().AllCommitted());
  const std::vector<std::byte> before = engines_[0]->Live(0, 0);
  trainer_->Fill(77);
  verdict_ = Status::DataLoss("sentinel_differs", "prompt 3");

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas[0].state, ReplicaState::kRolledBack);
  EXPECT_EQ(report.replicas[0].status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(report.replicas[0].status.reason(), "sentinel_differs");
  EXPECT_EQ(engines_[0]->live().number, 1u);
  EXPECT_EQ(engines_[0]->Live(0, 0), before);
  ASSERT_EQ(engines_[0]->account().rollbacks.size(), 1u);
  EXPECT_EQ(engines_[0]->account().rollbacks[0].why.reason(), "sentinel_differs");
  EXPECT_TRUE(engines_[0]->account().rollbacks[0].refused);
  EXPECT_EQ(publisher_->RollBack(std::nullopt, Soon()).status().reason(), "no_kept_version");
  EXPECT_EQ(engines_[1]->live().number, 1u) << "nobody goes back where one cannot";
  for (const std::size_t other : {1, 2}) {
    EXPECT_EQ(report.replicas[other].state, ReplicaState::kAborted);
    EXPECT_EQ(report.replicas[other].status.reason(), "sentinel_differs");
    EXPECT_THAT(report.replicas[other].status.message(), HasSubstr("canary engine-0"));
    EXPECT_EQ(engines_[other]->account().offers.size(), 1u) << "only the first version was offered";
    EXPECT_EQ(engines_[other]->live().number, 1u);
  }
}

TEST_F(CanaryTest, ARefusedCanaryGoesBackToWhatItHadAlsoWhereTheTrainerHasNotHeardOfIt) {
  MakePublisher();
  ASSERT_TRUE(Publish().AllCommitted());
  const std::vector<std::byte> before = engines_[0]->Live(0, 0);
  trainer_->Fill(77);
  ASSERT_TRUE(Publish().AllCommitted());
  engines_[0]->GoBack();
  verdict_ = Status::DataLoss("sentinel_differs", "prompt 3");

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas[0].state, ReplicaState::kRolledBack);
  EXPECT_EQ(report.replicas[0].flip.version.number, 1u);
  EXPECT_EQ(engines_[0]->live().number, 1u);
  EXPECT_EQ(engines_[0]->Live(0, 0), before);
}

TEST_F(CanaryTest, TheNextVersionAfterARefusalHasANumberOfItsOwn) {
  MakePublisher();
  verdict_ = Status::DataLoss("sentinel_differs", "");
  ASSERT_EQ(Publish().version.number, 1u);
  verdict_ = OkStatus();

  const PublishReport report = Publish();

  EXPECT_EQ(report.version.number, 2u);
  EXPECT_TRUE(report.AllCommitted());
}

TEST_F(CanaryTest, ACanaryThatFailsLeavesTheRestAlone) {
  engines_[0]->Play({.step = EngineStep::kSeal, .deed = EngineDeed::kAbort});
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_TRUE(views_.empty());
  EXPECT_EQ(report.replicas[0].status.reason(), "scripted");
  EXPECT_EQ(report.replicas[1].status.reason(), "canary_failed");
  EXPECT_TRUE(engines_[1]->account().offers.empty());
}

TEST_F(CanaryTest, ACanaryThatIsLostBeforeItCanGoBackIsReportedAsSuch) {
  engines_[0]->Play({.step = EngineStep::kRollback, .deed = EngineDeed::kVanish});
  MakePublisher();
  verdict_ = Status::DataLoss("sentinel_differs", "");

  const PublishReport report = Publish();

  EXPECT_EQ(report.replicas[0].state, ReplicaState::kCommitted) << "the refused version is what it had last";
  EXPECT_EQ(report.replicas[0].status.reason(), "peer_lost");
  EXPECT_EQ(report.replicas[0].phase, "rollback");
  EXPECT_THAT(report.replicas[0].status.message(), HasSubstr("sentinel_differs"));
  EXPECT_EQ(engines_[1]->live().number, 0u);
}

TEST_F(CanaryTest, ACanaryThatDidNotHearThatItWasRefusedHearsItBeforeTheNextVersion) {
  MakePublisher();
  ASSERT_TRUE(Publish().AllCommitted());
  engines_[0]->Play({.step = EngineStep::kRollback, .deed = EngineDeed::kVanish});
  verdict_ = Status::DataLoss("sentinel_differs", "prompt 3");
  const WeightVersion refused = Publish().version;
  ASSERT_EQ(engines_[0]->live(), refused);
  engines_[0]->Play({});
  verdict_ = OkStatus();

  EXPECT_TRUE(Publish().AllCommitted());

  ASSERT_EQ(engines_[0]->account().rollbacks.size(), 1u);
  EXPECT_EQ(engines_[0]->account().rollbacks[0].from, refused);
  EXPECT_TRUE(engines_[0]->account().rollbacks[0].refused);
  EXPECT_EQ(views_.back().previous.number, 1u) << "what a canary can go back to was never refused";
  for (const auto& engine : engines_) {
    EXPECT_THAT(engine->account().required, testing::Not(testing::Contains(refused)))
        << "nobody lacks what was refused";
  }
  ASSERT_TRUE(publisher_->RollBack(std::nullopt, Soon()).ok());
  for (const auto& engine : engines_) EXPECT_EQ(engine->live().number, 1u);
}

TEST_F(CanaryTest, ARefusedCanaryThatIsRolledBackWithItsFleetDoesNotKeepWhatItLeaves) {
  for (std::size_t i = 1; i < 3; ++i) options_.replicas.pop_back();
  MakePublisher();
  ASSERT_TRUE(Publish().AllCommitted());
  engines_[0]->Play({.step = EngineStep::kRollback, .deed = EngineDeed::kVanish});
  verdict_ = Status::DataLoss("sentinel_differs", "prompt 3");
  const WeightVersion refused = Publish().version;
  ASSERT_EQ(engines_[0]->live(), refused);
  engines_[0]->Play({});

  ASSERT_TRUE(publisher_->RollBack(std::nullopt, Soon()).ok());

  EXPECT_EQ(engines_[0]->live().number, 1u);
  EXPECT_EQ(publisher_->RollBack(std::nullopt, Soon()).status().reason(), "no_kept_version");
}

TEST_F(CanaryTest, TheCanaryIsAReplicaThatHasAVersionToGoBackTo) {
  engines_[0]->SetLive({});
  options_.run = "base";
  options_.new_run = true;
  MakePublisher();

  const PublishReport report = Publish();

  EXPECT_TRUE(report.AllCommitted());
  EXPECT_EQ(views_.at(0).address, "engine-1");
}

TEST_F(CanaryTest, WithoutAnyVersionToGoBackToNothingIsSent) {
  for (const auto& engine : engines_) engine->SetLive({});
  options_.run = "base";
  MakePublisher();

  const PublishReport report = Publish();

  for (const ReplicaReport& replica : report.replicas) EXPECT_EQ(replica.status.reason(), "no_kept_version");
  for (const auto& engine : engines_) EXPECT_TRUE(engine->account().offers.empty());
}

TEST_F(CanaryTest, OneThatLoadsItsFirstVersionAfterARefusalIsTheNextCanary) {
  for (const auto& engine : engines_) engine->SetLive({});
  options_.run = "base";
  MakePublisher();
  ASSERT_EQ(Publish().replicas[0].status.reason(), "no_kept_version");
  engines_[1]->SetLive({.run = "base", .number = 0, .digest = {}});

  const PublishReport report = Publish();

  EXPECT_TRUE(report.AllCommitted());
  EXPECT_EQ(views_.at(0).address, "engine-1");
}

TEST_F(CanaryTest, CanaryWithoutAGateIsABadOption) {
  options_.gate = {};
  options_.control = &control_;
  options_.transports = {&dialer_};

  EXPECT_EQ(WeightPublisher::Create(options_, trainer_->Source()).status().reason(), "bad_options");
}

}  // namespace
}  // namespace bascule
