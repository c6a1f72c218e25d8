#include <gmock/gmock.h>

#include <array>
#include <thread>

#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

using ::testing::HasSubstr;

// Where a session stands when it is ended.
enum class Point { kOffered, kReceiving, kHalfReceived, kReady };

class EndingTest : public ReceiverTest, public ::testing::WithParamInterface<Point> {
 protected:
  EndingTest() : publisher_(WithVersionOne()) {
    if (GetParam() == Point::kOffered) {
      reader_ = receiver_->AcquireLive();  // of version 1, whose slot version 3 waits for
      publisher_->Publish(publisher_->MakeOffer(2));
    }
    live_ = live_number();
    offer_ = publisher_->MakeOffer(live_ + 1);
    Advance();
    if (GetParam() == Point::kOffered) {
      WaitFor([](const ReceiverStatus& status) { return status.session.has_value(); });
    }
  }
  ~EndingTest() override {
    publisher_.reset();
    reader_ = WeightLease();
    Stop();
  }

  void Advance() {
    if (GetParam() == Point::kOffered) {
      publisher_->Send(offer_);
      return;
    }
    publisher_->BeginSession(offer_);
    if (GetParam() == Point::kHalfReceived) publisher_->SendBucket(offer_.session, offer_.manifest.number, 0);
    if (GetParam() == Point::kReady) publisher_->StageAndSeal(offer_);
  }

  // Nothing live has changed, the reason is on record, and another publisher can publish at once.
  void ExpectEndedBecause(const std::string& reason) {
    WaitUntilNoSessionIsOpen();
    EXPECT_EQ(receiver_->status().last_error.reason(), reason) << receiver_->status().last_error.ToString();
    EXPECT_EQ(live_number(), live_);
    const std::vector<HistoryEntry> history = receiver_->History();
    if (GetParam() == Point::kOffered) {
      EXPECT_TRUE(history.back().committed) << "not accepted: no row";
      reader_ = WeightLease();
    } else {
      EXPECT_EQ(history.back().why.reason(), reason);
      EXPECT_EQ(history.back().version.number, live_ + 1);
    }
    auto next = Greeted();
    next->Publish(next->MakeOffer(live_ + 2));
    ExpectLiveBytesOf(live_ + 2);
  }

  std::unique_ptr<ScriptedPublisher> publisher_;
  WeightLease reader_;
  std::uint64_t live_ = 0;
  Offer offer_;
};

TEST_P(EndingTest, I6APublisherThatVanishesEndsItsSessionAtOnce) {
  publisher_->Vanish();

  ExpectEndedBecause("peer_lost");
}

TEST_P(EndingTest, I6AnAbortOfThePublisherEndsItsSessionWithItsReason) {
  publisher_->Send(Abort{offer_.session, Status::Cancelled("cancelled", "the trainer stops")});

  EXPECT_THAT(publisher_->Expect<Abort>().why.message(), HasSubstr("the trainer stops"));
  ExpectEndedBecause("cancelled");
}

TEST_P(EndingTest, I8APublisherThatStallsIsEndedAtTheDeadline) {
  clock_.Advance(offer_.time_left);

  const Status why = publisher_->Expect<Abort>().why;

  EXPECT_EQ(why.code(), StatusCode::kDeadlineExceeded);
  ExpectEndedBecause(why.reason());
  EXPECT_EQ(why.reason() == "shadow_leased", why.reason() != "deadline");
}

TEST_P(EndingTest, I7ANewerSessionOfTheSamePublisherFencesTheOlder) {
  auto newer = Greeted(publisher_->id());
  const Offer offer = newer->MakeOffer(live_ + 1);

  newer->Send(offer);

  EXPECT_EQ(publisher_->Expect<Abort>().why.reason(), "fenced");
  reader_ = WeightLease();
  EXPECT_EQ(newer->Expect<Accept>().session, offer.session);
  newer->OpenRoutes();
  newer->StageAndSeal(offer);
  newer->FlipNow(offer);
  ExpectLiveBytesOf(live_ + 1);
}

std::string NameOf(const ::testing::TestParamInfo<Point>& point) {
  constexpr std::array kNames = {"Offered", "Receiving", "HalfReceived", "Ready"};
  return kNames[static_cast<std::size_t>(point.param)];
}

INSTANTIATE_TEST_SUITE_P(AtAnyPoint, EndingTest,
                         ::testing::Values(Point::kOffered, Point::kReceiving, Point::kHalfReceived, Point::kReady),
                         NameOf);

using LostRouteTest = ReceiverTest;

TEST_F(LostRouteTest, ALostRouteEndsTheSessionAndAsksForANewConnection) {
  auto publisher = WithVersionOne();
  const Offer offer = publisher->MakeOffer(2);
  publisher->BeginSession(offer);

  publisher->CloseRoutes();

  const Status why = publisher->Expect<Abort>().why;
  EXPECT_EQ(why.reason(), "peer_lost");
  EXPECT_THAT(why.message(), HasSubstr("route of sender rank"));
  publisher->Send(publisher->MakeOffer(3));
  EXPECT_EQ(publisher->Expect<Abort>().why.reason(), "route_lost");
  auto again = Greeted(publisher->id());
  again->Publish(again->MakeOffer(3));
  ExpectLiveBytesOf(3);
}

using FlipEndingTest = ReceiverTest;

// C-010.
TEST_F(FlipEndingTest, WithoutASafePointBeforeTheDeadlineNothingFlips) {
  auto publisher = WithVersionOne();
  const Offer offer = publisher->MakeOffer(2);
  publisher->BeginSession(offer);
  publisher->StageAndSeal(offer);
  hooks_.Hold();

  publisher->Send(Flip{offer.session});
  while (!hooks_.waiting()) std::this_thread::yield();
  clock_.Advance(offer.time_left);

  EXPECT_EQ(publisher->Expect<Abort>().why.reason(), "deadline");
  hooks_.Resume();
  ExpectLiveBytesOf(1);
  EXPECT_EQ(hooks_.invalidated().size(), 1u);
  publisher->Publish(publisher->MakeOffer(3));
  ExpectLiveBytesOf(3);
}

// An engine that was stopped comes to its safe point late: the publisher has said already that it missed the version.
TEST_F(FlipEndingTest, AtASafePointThatComesAfterTheDeadlineNothingFlips) {
  auto publisher = WithVersionOne();
  const Offer offer = publisher->MakeOffer(2);
  publisher->BeginSession(offer);
  publisher->StageAndSeal(offer);
  hooks_.at_safe_point = [&] { clock_.Advance(offer.time_left); };

  publisher->Send(Flip{offer.session});

  EXPECT_EQ(publisher->Expect<Abort>().why.reason(), "deadline");
  ExpectLiveBytesOf(1);
  EXPECT_EQ(hooks_.invalidated().size(), 1u);
  hooks_.at_safe_point = [] {};
  publisher->Publish(publisher->MakeOffer(3));
  ExpectLiveBytesOf(3);
}

TEST_F(FlipEndingTest, ARollbackWhoseSafePointComesAfterItsDeadlineChangesNothing) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));
  hooks_.at_safe_point = [&] { clock_.Advance(std::chrono::seconds(2)); };

  const Deadline deadline = Deadline::After(clock_, std::chrono::seconds(1));

  EXPECT_EQ(receiver_->Rollback(std::nullopt, deadline).status().reason(), "deadline");
  ExpectLiveBytesOf(2);
}

TEST_F(FlipEndingTest, APublisherThatVanishesAfterItsDecisionDoesNotUndoIt) {
  auto publisher = WithVersionOne();
  const Offer offer = publisher->MakeOffer(2);
  publisher->BeginSession(offer);
  publisher->StageAndSeal(offer);
  hooks_.Hold();
  publisher->Send(Flip{offer.session});
  while (!hooks_.waiting()) std::this_thread::yield();

  publisher->Vanish();
  hooks_.Resume();

  WaitFor([](const ReceiverStatus& status) { return status.live && status.live->number == 2; });
  ExpectLiveBytesOf(2);
  EXPECT_TRUE(receiver_->History().back().committed);
}

}  // namespace
}  // namespace bascule
