#include <thread>

#include "base/worker.h"
#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

using RollbackTest = ReceiverTest;

TEST_F(RollbackTest, TheKeptVersionIsLiveAgainWithItsOwnInvalidationAndRow) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));

  const Result<FlipReport> report = receiver_->Rollback(std::nullopt, Soon());

  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->version.number, 1u);
  EXPECT_EQ(report->flip_stall_us, 7.0);
  ExpectLiveBytesOf(1);
  EXPECT_EQ(receiver_->status().kept->number, 2u);
  EXPECT_EQ(receiver_->status().flip_count, 2u);
  EXPECT_EQ(hooks_.invalidated().size(), 3u);
  EXPECT_EQ(hooks_.live_inside().back()->number, 1u);
  const HistoryEntry row = receiver_->History().back();
  EXPECT_EQ(row.kind, HistoryEntry::Kind::kRollback);
  EXPECT_EQ(row.version.number, 1u);
  EXPECT_TRUE(row.committed);
}

TEST_F(RollbackTest, AnOperatorsSecondRollbackGoesForwardAgain) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));

  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());

  ExpectLiveBytesOf(2);
}

TEST_F(RollbackTest, TheTargetMustBeTheKeptVersion) {
  auto publisher = WithVersionOne();
  EXPECT_EQ(receiver_->Rollback(std::nullopt, Soon()).status().reason(), "no_kept_version");
  publisher->Publish(publisher->MakeOffer(2));

  EXPECT_EQ(receiver_->Rollback(7, Soon()).status().reason(), "version_not_kept");
  ExpectLiveBytesOf(2);
  EXPECT_TRUE(receiver_->Rollback(1, Soon()).ok());
  ExpectLiveBytesOf(1);
}

TEST_F(RollbackTest, I3NumbersThatWereCommittedStayTakenAfterARollback) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());

  publisher->Send(publisher->MakeOffer(2));
  EXPECT_EQ(publisher->Expect<Abort>().why.reason(), "version_reused");

  publisher->Publish(publisher->MakeOffer(3));
  ExpectLiveBytesOf(3);
}

TEST_F(RollbackTest, AfterARollbackAcrossRunsBothRunsMayGoOn) {
  auto publisher = WithVersionOne();
  Offer other = publisher->MakeOffer(1, "other");
  other.manifest.new_run = true;
  publisher->Publish(other);
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());

  publisher->Publish(publisher->MakeOffer(2, "other"));
  EXPECT_EQ(receiver_->status().live->run, "other");
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());
  publisher->Publish(publisher->MakeOffer(2, "run"));
  EXPECT_EQ(receiver_->status().live->run, "run");
}

// A run may begin anew where another one is live. A rollback brings its first beginning back meanwhile.
TEST_F(RollbackTest, I3ANumberThatARollbackBringsBackBeforeTheFlipIsReused) {
  Start(/*slot_count=*/3);
  auto publisher = WithVersionOne();
  Offer other = publisher->MakeOffer(1, "other");
  other.manifest.new_run = true;
  publisher->Publish(other);
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());
  Offer again = publisher->MakeOffer(1, "other");
  again.manifest.new_run = true;
  publisher->BeginSession(again);
  publisher->StageAndSeal(again);
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());

  publisher->Send(Flip{again.session, 0});

  EXPECT_EQ(publisher->Expect<Abort>().why.reason(), "version_reused");
  EXPECT_EQ(receiver_->status().live, publisher->VersionOf(other));
  publisher->Publish(publisher->MakeOffer(2, "other"));
  ExpectLiveBytesOf(2);
}

TEST_F(RollbackTest, TwoSlotsGiveTheWayBackUpWhenTheNextSessionIsAccepted) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));
  publisher->BeginSession(publisher->MakeOffer(3));

  EXPECT_EQ(receiver_->Rollback(std::nullopt, Soon()).status().reason(), "no_kept_version");
  EXPECT_EQ(receiver_->status().kept, std::nullopt);
}

TEST_F(RollbackTest, ThreeSlotsKeepTheWayBackWhileTheNextVersionStages) {
  Start(3);
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));
  const Offer offer = publisher->MakeOffer(3);
  publisher->BeginSession(offer);

  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());
  ExpectLiveBytesOf(1);

  publisher->StageAndSeal(offer);
  publisher->FlipNow(offer);
  ExpectLiveBytesOf(3);
  EXPECT_EQ(receiver_->status().kept->number, 1u);
}

TEST_F(RollbackTest, ARollbackIsRefusedWhileAFlipIsInProgress) {
  Start(3);
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));
  const Offer offer = publisher->MakeOffer(3);
  publisher->BeginSession(offer);
  publisher->StageAndSeal(offer);
  hooks_.Hold();
  publisher->Send(Flip{offer.session});
  while (!hooks_.waiting()) std::this_thread::yield();

  EXPECT_EQ(receiver_->Rollback(std::nullopt, Soon()).status().reason(), "flip_in_progress");

  hooks_.Resume();
  publisher->Expect<Committed>();
  ExpectLiveBytesOf(3);
}

TEST_F(RollbackTest, AFlipWaitsForARollbackThatIsUnderWay) {
  Start(3);
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));
  const Offer offer = publisher->MakeOffer(3);
  publisher->BeginSession(offer);
  publisher->StageAndSeal(offer);
  hooks_.Hold();
  Status rollback;
  {
    Worker operation("rollback",
                     [&](std::stop_token) { rollback = receiver_->Rollback(std::nullopt, Soon()).status(); });
    while (!hooks_.waiting()) std::this_thread::yield();
    publisher->Send(Flip{offer.session});
    hooks_.Resume();
  }
  publisher->Expect<Committed>();

  EXPECT_TRUE(rollback.ok()) << rollback.ToString();
  ExpectLiveBytesOf(3);
  EXPECT_EQ(receiver_->status().kept->number, 1u) << "the version that the rollback had made live";
}

TEST_F(RollbackTest, WithoutASafePointInTimeNothingChanges) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));
  hooks_.Hold();
  const Deadline deadline = Deadline::After(clock_, std::chrono::seconds(5));
  Status late;
  {
    Worker operation("rollback", [&](std::stop_token) { late = receiver_->Rollback(std::nullopt, deadline).status(); });
    clock_.Advance(std::chrono::seconds(5));
  }

  EXPECT_EQ(late.reason(), "deadline");
  ExpectLiveBytesOf(2);
  EXPECT_EQ(receiver_->status().kept->number, 1u);
}

}  // namespace
}  // namespace bascule
