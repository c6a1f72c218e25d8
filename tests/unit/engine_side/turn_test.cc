#include <gmock/gmock.h>

#include <thread>

#include "base/worker.h"
#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

using ::testing::HasSubstr;

// Two publishers, of which the first has a session open.
class TurnTest : public ReceiverTest {
 protected:
  TurnTest() : first_(WithVersionOne()), second_(Greeted()), offer_(first_->MakeOffer(2)) {
    first_->BeginSession(offer_);
  }
  ~TurnTest() override {
    first_.reset();
    second_.reset();
    Stop();
  }

  Status Refused(ScriptedPublisher& publisher, const Offer& offer) {
    publisher.Send(offer);
    return publisher.Expect<Abort>().why;
  }

  std::unique_ptr<ScriptedPublisher> first_;
  std::unique_ptr<ScriptedPublisher> second_;
  Offer offer_;
};

// C-046.
TEST_F(TurnTest, I7ASecondPublisherIsToldWhoIsBusyAndTheFirstGoesOn) {
  clock_.Advance(std::chrono::milliseconds(250));

  const Status why = Refused(*second_, second_->MakeOffer(3));

  EXPECT_EQ(why.reason(), "publisher_busy");
  EXPECT_THAT(why.message(), HasSubstr(first_->id().ToString()));
  EXPECT_THAT(why.message(), HasSubstr("250 ms"));
  first_->StageAndSeal(offer_);
  first_->FlipNow(offer_);
  ExpectLiveBytesOf(2);
  second_->Publish(second_->MakeOffer(3));
  ExpectLiveBytesOf(3);
}

// C-046.
TEST_F(TurnTest, I7ATakeoverEndsTheOtherSessionAndFencesItsPublisherUntilThatTakesOverItself) {
  Offer takeover = second_->MakeOffer(3);
  takeover.take_over = true;
  takeover.term = 1;

  second_->Publish(takeover);

  EXPECT_EQ(first_->Expect<Abort>().why.reason(), "fenced");
  ExpectLiveBytesOf(3);
  EXPECT_EQ(Refused(*first_, first_->MakeOffer(4)).reason(), "fenced");
  Offer back = first_->MakeOffer(4);
  back.take_over = true;
  back.term = 2;
  first_->Publish(back);
  ExpectLiveBytesOf(4);
}

// C-046.
TEST_F(TurnTest, LateBucketsOfAFencedSessionTouchNothing) {
  Offer takeover = second_->MakeOffer(3);
  takeover.take_over = true;
  second_->BeginSession(takeover);
  first_->Expect<Abort>();

  EXPECT_EQ(first_->SendBucket(offer_.session, 2, 0), BucketVerdict::kFenced);

  second_->StageAndSeal(takeover);
  second_->FlipNow(takeover);
  ExpectLiveBytesOf(3);
}

TEST_F(TurnTest, BucketsOfAnEarlierSessionOfTheSameConnectionAreFenced) {
  first_->Send(Abort{offer_.session, Status::Cancelled("cancelled")});
  first_->Expect<Abort>();
  const Offer next = first_->MakeOffer(3);
  first_->BeginSession(next);

  EXPECT_EQ(first_->SendBucket(offer_.session, 2, 0), BucketVerdict::kFenced);

  first_->StageAndSeal(next);
  first_->FlipNow(next);
  ExpectLiveBytesOf(3);
}

TEST_F(TurnTest, AnOlderTermOfTheSamePublisherIsFenced) {
  auto again = Greeted(first_->id());
  Offer newer = again->MakeOffer(3);
  newer.term = 5;
  again->BeginSession(newer);
  EXPECT_EQ(first_->Expect<Abort>().why.reason(), "fenced");

  Offer older = first_->MakeOffer(4);
  older.term = 4;

  EXPECT_EQ(Refused(*first_, older).reason(), "fenced");
}

// C-046.
TEST_F(TurnTest, AnOfferThatIsRepeatedIsTheSameSession) {
  first_->Send(offer_);

  first_->StageAndSeal(offer_);
  first_->FlipNow(offer_);

  ExpectLiveBytesOf(2);
}

TEST_F(TurnTest, AnOfferThatIsRefusedLeavesTheOpenSessionOfItsPublisher) {
  EXPECT_EQ(Refused(*first_, first_->MakeOffer(1)).reason(), "version_reused");

  first_->StageAndSeal(offer_);
  first_->FlipNow(offer_);
  ExpectLiveBytesOf(2);
}

TEST_F(TurnTest, ASessionThatFlipsIsNotTakenOver) {
  first_->StageAndSeal(offer_);
  hooks_.Hold();
  first_->Send(Flip{offer_.session});
  while (!hooks_.waiting()) std::this_thread::yield();
  Offer takeover = second_->MakeOffer(3);
  takeover.take_over = true;

  EXPECT_EQ(Refused(*second_, takeover).reason(), "flip_in_progress");

  hooks_.Resume();
  first_->Expect<Committed>();
  ExpectLiveBytesOf(2);
  first_->Publish(first_->MakeOffer(4));
  ExpectLiveBytesOf(4);
}

// C-046.
TEST_F(TurnTest, ManyPublishersThatTakeOverFromEachOtherLeaveOneWholeVersion) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (int w = 0; w < 4; ++w) {
    workers.push_back(std::make_unique<Worker>("publisher", [this, w](std::stop_token) {
      auto publisher = Greeted();
      for (std::uint64_t i = 0; i < 10; ++i) {
        Offer offer = publisher->MakeOffer(10 + i * 4 + static_cast<std::uint64_t>(w));
        offer.take_over = true;
        publisher->Send(offer);
        if (!std::holds_alternative<Accept>(publisher->Next())) continue;
        publisher->OpenRoutes();
        const auto fenced = [&](std::uint32_t b) {
          return publisher->SendBucket(offer.session, offer.manifest.number, b) != BucketVerdict::kGood;
        };
        std::uint32_t b = 0;
        while (b < publisher->plan().buckets.size() && !fenced(b)) ++b;
        publisher->Send(Seal{offer.session, publisher->SealOf(offer.manifest.number)});
        if (!std::holds_alternative<Ready>(publisher->Next())) continue;
        publisher->Send(Flip{offer.session});
        static_cast<void>(publisher->Next());
      }
    }));
  }
  workers.clear();

  WaitUntilNoSessionIsOpen();
  ExpectLiveBytesOf(live_number());
}

}  // namespace
}  // namespace bascule
