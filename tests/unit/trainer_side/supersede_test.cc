// A newer version takes the place of one that is half staged, on the publisher's side.
#include "tests/unit/trainer_side/publisher_fixture.h"

namespace bascule {
namespace {

class SupersedeTest : public PublisherFixture {
 protected:
  static PublishRequest Newer() { return {.number = {}, .labels = {}, .take_over = false, .supersede = true}; }
};

TEST_F(SupersedeTest, ANewerVersionEndsOneThatIsHalfStagedOnEveryReplica) {
  AddEngine(/*engine_ranks=*/2).Play({.step = EngineStep::kBucket, .deed = EngineDeed::kStall});
  AddEngine(/*engine_ranks=*/2).Play({.step = EngineStep::kSeal, .deed = EngineDeed::kStall});
  options_.snapshot = Snapshot::kHost;
  MakePublisher();
  const auto old = Begin();
  for (const auto& engine : engines_) {
    ASSERT_TRUE(engine->WaitFor([](const auto& account) { return account.misdeeds > 0; }));
  }
  ASSERT_TRUE(old->WaitPacked(Soon()).ok());
  trainer_->Fill(123);
  for (const auto& engine : engines_) engine->Play({});

  const PublishReport report = Publish(Newer());

  const auto old_report = old->WaitCommitted(Soon());
  ASSERT_TRUE(old_report.ok());
  for (const ReplicaReport& replica : old_report->replicas) {
    EXPECT_EQ(replica.status.code(), StatusCode::kAborted);
    EXPECT_EQ(replica.status.reason(), "superseded");
    EXPECT_EQ(replica.state, ReplicaState::kAborted);
  }
  EXPECT_TRUE(report.AllCommitted());
  for (const auto& engine : engines_) {
    ASSERT_TRUE(engine->WaitFor([](const auto& account) { return !account.aborts.empty(); }));
    EXPECT_EQ(engine->account().aborts.at(0).reason(), "superseded");
    ExpectEngineHoldsTrainersTensors(*engine, 2);
  }
  EXPECT_EQ(publisher_->History().size(), 2u);
  EXPECT_FALSE(publisher_->status().publishing);
}

TEST_F(SupersedeTest, OnlyTheNewestOfManyIsSent) {
  AddEngine().Play({.hold = EngineStep::kOffer});
  options_.snapshot = Snapshot::kHost;
  MakePublisher();
  std::vector<std::shared_ptr<PublishHandle>> old = {Begin()};
  ASSERT_TRUE(engines_[0]->WaitFor([](const auto& account) { return account.holds == 1; }));
  for (int i = 0; i < 5; ++i) old.push_back(Begin(Newer()));
  const auto newest = Begin(Newer());
  engines_[0]->Play({});

  const PublishReport report = *newest->WaitCommitted(Soon());

  EXPECT_TRUE(report.AllCommitted());
  for (const auto& handle : old) {
    EXPECT_EQ(handle->WaitCommitted(Soon())->replicas[0].status.reason(), "superseded");
  }
  EXPECT_EQ(engines_[0]->live(), report.version);
}

TEST_F(SupersedeTest, WhatIsDecidedIsCarriedOutAndTheNewerVersionComesAfterIt) {
  AddEngine();
  AddEngine().Play({.hold = EngineStep::kFlip});
  options_.policy = PublishPolicy::kAll;
  MakePublisher();
  const auto old = Begin();
  ASSERT_TRUE(engines_[1]->WaitFor([](const auto& account) { return account.holds == 1; }));
  const auto newer = Begin(Newer());

  engines_[1]->Play({});

  EXPECT_TRUE(old->WaitCommitted(Soon())->AllCommitted());
  EXPECT_TRUE(newer->WaitCommitted(Soon())->AllCommitted());
  EXPECT_EQ(newer->WaitCommitted(Soon())->version.number, 2u);
}

}  // namespace
}  // namespace bascule
