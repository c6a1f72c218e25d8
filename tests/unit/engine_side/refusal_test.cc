#include <gmock/gmock.h>

#include <thread>

#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

using ::testing::HasSubstr;

// A publisher that made version 4 live; each refusal must leave that, and the connection, as they were.
class RefusalTest : public ReceiverTest {
 protected:
  RefusalTest() : publisher_(Greeted()) { publisher_->Publish(publisher_->MakeOffer(4)); }
  ~RefusalTest() override {
    publisher_.reset();
    Stop();
  }

  // Sends the offer after `damage` and returns why it is refused.
  Status Refused(const std::function<void(Offer&)>& damage) {
    Offer offer = publisher_->MakeOffer(5);
    damage(offer);
    publisher_->Send(offer);
    const Abort abort = publisher_->Expect<Abort>();
    EXPECT_EQ(abort.session, offer.session);
    EXPECT_EQ(receiver_->History().size(), 1u) << "an offer that is refused is no row";
    EXPECT_EQ(live_number(), 4u);
    EXPECT_FALSE(receiver_->status().session);
    EXPECT_TRUE(receiver_->status().last_error.ok());
    return abort.why;
  }
  std::string ReasonOf(const std::function<void(Offer&)>& damage) { return Refused(damage).reason(); }

  std::unique_ptr<ScriptedPublisher> publisher_;
};

TEST_F(RefusalTest, AnotherModelInAnOfferIsRefusedWithBothSpelledOut) {
  const Status why = Refused([](Offer& offer) { offer.manifest.model = "OtherModel layers=9"; });

  EXPECT_EQ(why.reason(), "wrong_model");
  EXPECT_THAT(why.message(), HasSubstr("OtherModel layers=9"));
  EXPECT_THAT(why.message(), HasSubstr("TestModel layers=1"));
}

TEST_F(RefusalTest, QuantisedWeightsThatTheEngineHasNotAreRefusedAndNamed) {
  const Status why = Refused([](Offer& offer) {
    const auto& tensors = offer.manifest.tensors;
    offer.manifest.families = {{"layer", "fp8 128x128 weight_scale_inv", {tensors[0].name, tensors[1].name}}};
  });

  EXPECT_EQ(why.reason(), "families_differ");
  EXPECT_THAT(why.message(), HasSubstr("publisher layer (fp8 128x128 weight_scale_inv), engine none"));
}

TEST_F(RefusalTest, I3ANumberThatWasCommittedIsReusedAndALowerOneIsStale) {
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.manifest.number = 4; }), "version_reused");
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.manifest.number = 3; }), "stale_version");
}

// An engine that starts offers its own files, and a publisher may have been quicker.
TEST_F(RefusalTest, AFirstVersionIsRefusedWhereSomethingIsLiveWhateverItsRunAndNumber) {
  const Status why = Refused([](Offer& offer) {
    offer.first = true;
    offer.manifest.run = "checkpoint";
    offer.manifest.new_run = true;
  });

  EXPECT_EQ(why.reason(), "already_live");
  EXPECT_THAT(why.message(), HasSubstr("run@4"));
  EXPECT_EQ(ReasonOf([](Offer& offer) {
              offer.first = true;
              offer.manifest.number = 0;
            }),
            "already_live");
}

TEST_F(RefusalTest, AnotherRunHasToSayThatItStarts) {
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.manifest.run = "other"; }), "unknown_run");

  Offer offer = publisher_->MakeOffer(1, "other");
  offer.manifest.new_run = true;
  publisher_->Publish(offer);

  EXPECT_EQ(receiver_->status().live->run, "other");
  ExpectLiveBytesOf(1);
}

TEST_F(RefusalTest, ARunThatStartsAnewMayUseAnyNumber) {
  Offer offer = publisher_->MakeOffer(2, "resumed");
  offer.manifest.new_run = true;
  publisher_->Publish(offer);
  EXPECT_EQ(live_number(), 2u);

  publisher_->Publish(publisher_->MakeOffer(3, "resumed"));
  EXPECT_EQ(live_number(), 3u);
}

// C-031.
TEST_F(RefusalTest, AnotherPlanOrManifestIsRefusedBeforeAByteMoves) {
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.plan_digest.bytes[0] ^= std::byte{1}; }), "plan_mismatch");
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.manifest.sender_layout.bytes[0] ^= std::byte{1}; }), "manifest_mismatch");
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.manifest.tensors.pop_back(); }), "manifest_mismatch");
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.manifest.tensors[0].shape = {65, 64}; }), "manifest_mismatch");
  EXPECT_EQ(ReasonOf([](Offer& offer) { std::swap(offer.manifest.tensors[0], offer.manifest.tensors[1]); }),
            "bad_manifest");
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.manifest.run.clear(); }), "bad_manifest");
}

TEST_F(RefusalTest, NumbersOutsideTheirLimitsAreABadOffer) {
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.time_left = Duration::zero(); }), "bad_offer");
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.frame_bytes -= 1; }), "bad_offer");
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.frame_bytes = kMaxFrameBytes + 1; }), "bad_offer");
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.credits = 0; }), "bad_offer");
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.credits = 9; }), "bad_offer");
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.session = SessionId{}; }), "bad_offer");
}

// C-044.
TEST_F(RefusalTest, ATransportThatTheEngineDoesNotTakeIsRefused) {
  auto fresh = Greeted();
  Offer offer = fresh->MakeOffer(5);
  offer.transport = TransportKind::kShm;

  fresh->Send(offer);

  EXPECT_EQ(fresh->Expect<Abort>().why.reason(), "transport_unavailable");
  EXPECT_EQ(ReasonOf([](Offer& other) { other.transport = TransportKind::kShm; }), "bad_offer")
      << "a connection keeps to the transport of its routes";
}

TEST_F(RefusalTest, AfterARefusalTheSameConnectionPublishes) {
  EXPECT_EQ(ReasonOf([](Offer& offer) { offer.manifest.number = 1; }), "stale_version");

  publisher_->Publish(publisher_->MakeOffer(5));

  ExpectLiveBytesOf(5);
}

// C-044.
TEST_F(RefusalTest, AnotherWireVersionIsRefusedWithBothValues) {
  auto stranger = Connect();

  stranger->Send(Hello{.wire_version = 2, .publisher = {}, .model = {}, .sender_layout = {}, .plan_options = {}});

  const Abort abort = stranger->Expect<Abort>();
  EXPECT_EQ(abort.session, SessionId{});
  EXPECT_EQ(abort.why, Status::FailedPrecondition("wire_version", "publisher=2 engine=1"));
}

TEST_F(RefusalTest, AnErrorOfThePlannerReachesThePublisherWithItsText) {
  auto stranger = Connect();
  Layout layout = SenderLayoutForTest();
  layout.tensors[1].name = "bb";

  stranger->Send(Hello{.publisher = {}, .model = {}, .sender_layout = layout, .plan_options = {}});

  const Abort abort = stranger->Expect<Abort>();
  EXPECT_EQ(abort.why.reason(), "tensor_missing");
  EXPECT_THAT(abort.why.message(), HasSubstr("b"));
}

TEST_F(RefusalTest, ALayoutThatContradictsItselfIsRefused) {
  auto stranger = Connect();
  Layout layout = SenderLayoutForTest();
  layout.ranks[0].rows[0].local = 99;

  stranger->Send(Hello{.publisher = {}, .model = {}, .sender_layout = layout, .plan_options = {}});

  EXPECT_EQ(stranger->Expect<Abort>().why.reason(), "bad_layout");
}

TEST_F(RefusalTest, WhateverComesBeforeHelloEndsTheConnection) {
  auto stranger = Connect();

  stranger->Send(Flip{SessionId{1}});

  EXPECT_EQ(stranger->Expect<Abort>().why.reason(), "unexpected_message");
  EXPECT_EQ(stranger->Expect<Abort>().why.reason(), "peer_lost") << "made by Next at the channel's end";
}

TEST_F(RefusalTest, AConnectionThatNeverSaysHelloEndsAtItsDeadline) {
  auto stranger = Connect();

  // The engine's wait may begin after a move of the time: then a further move ends it.
  Status end;
  while (end.ok()) {
    clock_.Advance(std::chrono::seconds(31));
    std::this_thread::yield();
    const auto message = stranger->channel().Receive(Deadline::After(clock_, Duration::zero()));
    if (message.ok()) end = std::get<Abort>(*message).why;
  }

  EXPECT_EQ(end.reason(), "deadline");
}

// C-047.
TEST_F(RefusalTest, MessagesWithoutASessionOrFromTheWrongSideAreAnswered) {
  publisher_->Send(Seal{SessionId{77}, {}});
  EXPECT_EQ(publisher_->Expect<Abort>().why.reason(), "unknown_session");
  publisher_->Send(Ready{SessionId{78}, 0, 0});
  EXPECT_EQ(publisher_->Expect<Abort>().why.reason(), "unexpected_message");
  publisher_->Send(Abort{SessionId{79}, Status::Cancelled("cancelled")});  // nothing to end, nothing to say

  publisher_->Publish(publisher_->MakeOffer(5));
  EXPECT_EQ(live_number(), 5u);
}

TEST_F(RefusalTest, MorePublishersThanMayBeConnectedAreRefusedAndOneThatLeavesMakesRoom) {
  publisher_.reset();
  Start(WeightReceiverOptions{.max_connections = 2});
  publisher_ = WithVersionOne();
  auto second = Greeted();

  auto third = Connect();
  EXPECT_EQ(third->Expect<Abort>().why.reason(), "too_many_callers");

  publisher_->Publish(publisher_->MakeOffer(2));
  second.reset();
  // There is room when the engine has noticed.
  SessionMessage answer = Abort{};
  while (std::holds_alternative<Abort>(answer)) {
    third = Connect();
    static_cast<void>(third->channel().Send(Hello{.publisher = third->id(), .sender_layout = SenderLayoutForTest()}));
    answer = third->Next();
  }
  EXPECT_TRUE(std::holds_alternative<HelloReply>(answer));
  third.reset();
}

// What a publisher says of its reasons would else stay ten thousand times.
TEST_F(RefusalTest, OfALongErrorTextAHistoryKeepsTheBeginning) {
  const Offer offer = publisher_->MakeOffer(5);
  publisher_->BeginSession(offer);

  publisher_->Send(Abort{offer.session, Status::Cancelled("cancelled", std::string(1 << 20, 'x'))});
  WaitUntilNoSessionIsOpen();

  EXPECT_EQ(receiver_->History().back().why.reason(), "cancelled");
  EXPECT_EQ(receiver_->History().back().why.message().size(), History::kTextBytes);
  EXPECT_LE(receiver_->status().last_error.message().size(), 4096u);
}

TEST_F(RefusalTest, AStepOutOfOrderEndsTheSession) {
  const Offer offer = publisher_->MakeOffer(5);
  publisher_->BeginSession(offer);

  publisher_->Send(Flip{offer.session});

  EXPECT_EQ(publisher_->Expect<Abort>().why.reason(), "bad_transition");
  EXPECT_EQ(live_number(), 4u);
  publisher_->Publish(publisher_->MakeOffer(6));
  ExpectLiveBytesOf(6);
}

}  // namespace
}  // namespace bascule
