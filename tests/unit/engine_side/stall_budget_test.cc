#include <gmock/gmock.h>

#include <thread>

#include "tests/unit/engine_side/faulty_copier.h"
#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

using std::chrono::microseconds;
using ::testing::HasSubstr;

// Every flip of the scripted engine stalls it for 7 us; version 2 has shown that.
class StallBudgetTest : public ReceiverTest {
 protected:
  void StartWith(Duration limit, bool refuse = false) {
    Start(WeightReceiverOptions{.stall_budget = {.limit = limit, .refuse = refuse}});
    publisher_ = WithVersionOne();
    publisher_->Publish(publisher_->MakeOffer(2));
  }
  // Publishes version 3 until it waits for its flip.
  void SendFlip(Duration time_left = std::chrono::minutes(1)) {
    offer_ = publisher_->MakeOffer(3);
    offer_.time_left = time_left;
    publisher_->BeginSession(offer_);
    publisher_->StageAndSeal(offer_);
    publisher_->Send(Flip{offer_.session});
  }
  void AwaitSafePoints(int count) {
    while (hooks_.safe_points() < count) {
      clock_.Advance(microseconds(100));
      std::this_thread::yield();
    }
  }

  std::unique_ptr<ScriptedPublisher> publisher_;
  Offer offer_;
};

TEST_F(StallBudgetTest, AFlipWithinTheBudgetHappensAtTheNextSafePoint) {
  StartWith(microseconds(7));

  SendFlip();

  publisher_->Expect<Committed>();
  ExpectLiveBytesOf(3);
  EXPECT_EQ(hooks_.safe_points(), 3);
}

TEST_F(StallBudgetTest, AFlipThatWouldTakeLongerIsPostponedUntilNothingDecodes) {
  StartWith(microseconds(6));
  SendFlip();
  AwaitSafePoints(3);
  AwaitSafePoints(4);
  EXPECT_EQ(live_number(), 2U);
  EXPECT_EQ(receiver_->status().session->state, SessionState::kReady);

  hooks_.decoding = false;
  while (live_number() == 2) clock_.Advance(microseconds(100));

  publisher_->Expect<Committed>();
  ExpectLiveBytesOf(3);
}

TEST_F(StallBudgetTest, AStallOfLongAgoHoldsNoVersionBackThoughDecodingNeverStops) {
  StartWith(microseconds(6));
  SendFlip(std::chrono::minutes(5));
  AwaitSafePoints(3);
  EXPECT_EQ(live_number(), 2U);

  clock_.Advance(std::chrono::minutes(2));

  publisher_->Expect<Committed>();
  ExpectLiveBytesOf(3);
  EXPECT_TRUE(hooks_.decoding);
}

TEST_F(StallBudgetTest, I8APostponedFlipEndsItsSessionAtTheDeadline) {
  StartWith(microseconds(6));
  SendFlip();
  AwaitSafePoints(3);

  clock_.Advance(std::chrono::hours(24));

  const Status why = publisher_->Expect<Abort>().why;
  EXPECT_EQ(why.reason(), "stall_over_budget");
  EXPECT_THAT(why.message(), HasSubstr("about 7 us, the budget is 6 us"));
  ExpectLiveBytesOf(2);
  hooks_.decoding = false;
  publisher_->Publish(publisher_->MakeOffer(4));
  ExpectLiveBytesOf(4);
}

TEST_F(StallBudgetTest, WhereThatIsAskedForItIsRefusedAtOnce) {
  StartWith(microseconds(6), /*refuse=*/true);

  SendFlip();

  EXPECT_EQ(publisher_->Expect<Abort>().why.reason(), "stall_over_budget");
  ExpectLiveBytesOf(2);
  EXPECT_EQ(hooks_.invalidated().size(), 2U);
}

TEST_F(StallBudgetTest, ARollbackIsNeverHeldBack) {
  StartWith(microseconds(6));

  EXPECT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());

  ExpectLiveBytesOf(1);
}

// A block of each of two ranks, three copies each, a millisecond a copy.
TEST_F(StallBudgetTest, AFlipInPlaceIsJudgedBeforeTheFirstOneByASampleOfTheMemory) {
  FaultyCopier copier;
  copier.on_copy = [this] { clock_.Advance(std::chrono::milliseconds(1)); };
  for (const int budget_ms : {6, 5}) {
    Start(WeightReceiverOptions{.flip = FlipMode::kInPlace,
                                .stall_budget = {.limit = std::chrono::milliseconds(budget_ms), .refuse = true},
                                .copier = &copier});
    publisher_ = WithVersionOne();
    SendFlip();

    if (budget_ms == 6) {
      publisher_->Expect<Committed>();
    } else {
      EXPECT_THAT(publisher_->Expect<Abort>().why.message(), HasSubstr("about 6000 us, the budget is 5000 us"));
      ExpectLiveBytesOf(1);
    }
  }
  Stop();
}

// What it stalled says nothing of one that has more to exchange.
TEST_F(StallBudgetTest, AFlipInPlaceIsJudgedByHowMuchItExchanges) {
  FaultyCopier copier;
  copier.on_copy = [this] { clock_.Advance(std::chrono::milliseconds(1)); };
  Start(WeightReceiverOptions{.flip = FlipMode::kInPlace,
                              .stall_budget = {.limit = std::chrono::milliseconds(3), .refuse = true},
                              .copier = &copier});
  WithVersionOne();
  auto partial = Connect();
  partial->Greet(PlanOptions{.bucket_bytes = 4096, .ignore = {}, .scope = {"n"}});

  partial->Publish(partial->MakePartialOffer(2, *receiver_->status().live));

  ExpectLiveBytes(2, {1, 1, 2, 1});
  publisher_ = Greeted();
  SendFlip();
  EXPECT_EQ(publisher_->Expect<Abort>().why.reason(), "stall_over_budget");
  ExpectLiveBytes(2, {1, 1, 2, 1});
  Stop();
}

}  // namespace
}  // namespace bascule
