// Versions of which only a declared scope is sent: the engine carries the rest over from the version that it has.
#include <gmock/gmock.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string_view>
#include <thread>

#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kAandN = {"a", "n"};

class PartialVersionTest : public ReceiverTest {
 protected:
  // Version 1 is live; a publisher with this scope.
  std::unique_ptr<ScriptedPublisher> OverVersionOne(const std::vector<std::string>& scope) {
    WithVersionOne();
    return WithScope(scope);
  }
  std::unique_ptr<ScriptedPublisher> WithScope(const std::vector<std::string>& scope) {
    auto publisher = Connect();
    publisher->Greet(PlanOptions{.bucket_bytes = 4096, .ignore = {}, .scope = scope});
    return publisher;
  }
  WeightVersion Live() { return *receiver_->status().live; }
  Status Refused(ScriptedPublisher& publisher, const Offer& offer) {
    publisher.Send(offer);
    return publisher.Expect<Abort>().why;
  }
  // Changes a byte of the live version, as bad memory would.
  void SpoilLive(int rank, int tensor) {
    const WeightLease lease = receiver_->AcquireLive();
    const_cast<std::byte&>(lease.Tensor(rank, tensor)[0]) ^= std::byte{1};
  }
};

// C-017.
TEST_F(PartialVersionTest, WhatIsNotSentIsCarriedOverAndTheVersionIsProvenAsAWhole) {
  auto publisher = OverVersionOne(kAandN);
  const Offer offer = publisher->MakePartialOffer(2, Live());

  const FlipReport report = publisher->Publish(offer);

  ExpectLiveBytes(2, {2, 1, 2, 1});
  EXPECT_EQ(report.version, publisher->VersionOf(offer));
  EXPECT_EQ(receiver_->DigestLive()->totals, publisher->SealOf(offer).digests);
  EXPECT_EQ(receiver_->status().kept->number, 1u);
  const HistoryEntry row = receiver_->History().back();
  EXPECT_EQ(row.bytes, 64 * 64 * 4 + 8 * 2);
  EXPECT_EQ(row.carried_bytes, 2 * 5 * 4 + 66 * 16 * 4) << "b on both ranks, v without its padding";
}

TEST_F(PartialVersionTest, TheAnswerToAnOfferHasTheDigestsOfTheBase) {
  auto publisher = OverVersionOne(kAandN);
  const Offer offer = publisher->MakePartialOffer(2, Live());

  publisher->Send(offer);

  EXPECT_EQ(publisher->Expect<Accept>().base, publisher->SealOf(1).digests);
  EXPECT_EQ(receiver_->status().session->carried_bytes, 2 * 5 * 4 + 66 * 16 * 4);
  EXPECT_EQ(receiver_->status().session->total_bytes, 64 * 64 * 4 + 8 * 2);
}

TEST_F(PartialVersionTest, AWholeVersionHasNoBaseAndNothingIsCarriedOver) {
  auto publisher = WithVersionOne();

  publisher->Send(publisher->MakeOffer(2));

  EXPECT_TRUE(publisher->Expect<Accept>().base.empty());
  EXPECT_EQ(receiver_->status().session->carried_bytes, 0);
}

// C-056: what is built on is told by run, number and digest.
TEST_F(PartialVersionTest, AnotherBaseThanTheLiveVersionIsRefusedWithBoth) {
  auto publisher = OverVersionOne(kAandN);
  const WeightVersion live = Live();
  WeightVersion other_bytes = live;
  other_bytes.digest = publisher->SealOf(7).version_digest;
  WeightVersion other_number = live;
  other_number.number = 0;
  WeightVersion other_run = live;
  other_run.run = "another";
  for (const WeightVersion& base : {other_bytes, other_number, other_run}) {
    const Status why = Refused(*publisher, publisher->MakePartialOffer(2, base));

    EXPECT_EQ(why.reason(), "wrong_base");
    EXPECT_THAT(why.message(), HasSubstr(base.digest.ToHex()));
    EXPECT_THAT(why.message(), HasSubstr(live.digest.ToHex()));
  }
  ExpectLiveBytesOf(1);
  EXPECT_EQ(receiver_->History().size(), 1u) << "refused before it was accepted";
}

TEST_F(PartialVersionTest, NothingLiveIsNoBase) {
  auto publisher = WithScope(kAandN);

  const Status why = Refused(*publisher, publisher->MakePartialOffer(1, {"run", 0, {}}));

  EXPECT_EQ(why.reason(), "wrong_base");
  EXPECT_THAT(why.message(), HasSubstr("live is nothing"));
}

// A rollback between the offer and the copy: the session asks again under its lease.
TEST_F(PartialVersionTest, ABaseThatIsNotLiveAnyMoreWhenItIsToBeCopiedIsRefused) {
  Start(/*slot_count=*/3);
  auto whole = WithVersionOne();
  whole->Publish(whole->MakeOffer(2));
  whole->Publish(whole->MakeOffer(3));
  auto publisher = WithScope(kAandN);
  std::optional<WeightLease> reader;  // of the slot that the session needs
  ASSERT_TRUE(receiver_->Rollback(2, Soon()).ok());
  reader = receiver_->AcquireLive();
  ASSERT_TRUE(receiver_->Rollback(3, Soon()).ok());
  whole->Publish(whole->MakeOffer(4));  // 4 live, 3 kept, 2 free but read
  publisher->Send(publisher->MakePartialOffer(5, Live()));
  WaitFor([](const ReceiverStatus& status) { return status.session.has_value(); });
  ASSERT_TRUE(receiver_->Rollback(3, Soon()).ok());

  reader.reset();

  EXPECT_EQ(publisher->Expect<Abort>().why.reason(), "wrong_base");
  ExpectLiveBytesOf(3);
  WaitUntilNoSessionIsOpen();
}

TEST_F(PartialVersionTest, TheScopeOfTheOfferIsThePlans) {
  auto publisher = OverVersionOne(kAandN);
  Offer wider = publisher->MakePartialOffer(2, Live());
  wider.manifest.scope = {"*"};
  Offer undeclared = publisher->MakeOffer(2);
  Offer without_base = publisher->MakePartialOffer(2, Live());
  without_base.manifest.base.reset();

  EXPECT_EQ(Refused(*publisher, wider).reason(), "manifest_mismatch");
  EXPECT_EQ(Refused(*publisher, undeclared).reason(), "manifest_mismatch");
  EXPECT_EQ(Refused(*publisher, without_base).reason(), "bad_manifest");
  ExpectLiveBytesOf(1);
}

TEST_F(PartialVersionTest, AHelloWhoseScopeMatchesNothingIsRefusedWithThePattern) {
  WithVersionOne();
  auto publisher = Connect();

  publisher->Send(Hello{.publisher = publisher->id(),
                        .model = {},
                        .sender_layout = SenderLayoutForTest(),
                        .plan_options = {.bucket_bytes = 4096, .ignore = {}, .scope = {"a", "vision.*"}}});

  const Status why = publisher->Expect<Abort>().why;
  EXPECT_EQ(why.reason(), "scope_matches_nothing");
  EXPECT_THAT(why.message(), HasSubstr("vision.*"));
}

// C-022: what is carried over is digested where it arrives.
TEST_F(PartialVersionTest, LiveMemoryThatHasChangedIsFoundBeforeItGoesLiveAgain) {
  auto publisher = OverVersionOne(kAandN);
  SpoilLive(/*rank=*/1, /*tensor=*/2);
  const Offer offer = publisher->MakePartialOffer(2, Live());
  publisher->BeginSession(offer);
  publisher->SendAllBuckets(offer);

  publisher->Send(Seal{offer.session, publisher->SealOf(offer)});

  const Status why = publisher->Expect<Abort>().why;
  EXPECT_EQ(why.reason(), "digest_mismatch");
  EXPECT_THAT(why.message(), HasSubstr("tensor v on engine ranks 0,1"));
  EXPECT_EQ(live_number(), 1u);
}

TEST_F(PartialVersionTest, AReplicaThatHasChangedIsFoundThoughItDoesNotCount) {
  auto publisher = OverVersionOne(kAandN);
  SpoilLive(/*rank=*/1, /*tensor=*/1);
  const Offer offer = publisher->MakePartialOffer(2, Live());
  publisher->BeginSession(offer);
  publisher->SendAllBuckets(offer);

  publisher->Send(Seal{offer.session, publisher->SealOf(offer)});

  const Status why = publisher->Expect<Abort>().why;
  EXPECT_EQ(why.reason(), "replicas_differ");
  EXPECT_THAT(why.message(), HasSubstr("tensor b"));
}

TEST_F(PartialVersionTest, WhatWasSealedOfAnotherBaseIsRefused) {
  auto publisher = OverVersionOne(kAandN);
  const Offer offer = publisher->MakePartialOffer(2, Live());
  publisher->BeginSession(offer);
  publisher->SendAllBuckets(offer);

  publisher->Send(Seal{offer.session, publisher->SealOf(2, /*base=*/7)});

  EXPECT_EQ(publisher->Expect<Abort>().why.reason(), "digest_mismatch");
  ExpectLiveBytesOf(1);
}

TEST_F(PartialVersionTest, PartialVersionsFollowOneAnotherAndGoBack) {
  auto publisher = OverVersionOne(kAandN);
  publisher->Publish(publisher->MakePartialOffer(2, Live()));
  auto other = WithScope({"v"});
  ManifestSeal seal = other->SealOf(3, 1);
  seal.digests[0] = other->SealOf(2).digests[0];
  seal.digests[2] = other->SealOf(2).digests[2];
  seal.version_digest = VersionDigestOf(other->plan().tensors, seal.digests);
  const Offer offer = other->MakePartialOffer(3, Live());
  other->BeginSession(offer);
  other->SendAllBuckets(offer);
  other->Send(Seal{offer.session, seal});
  EXPECT_EQ(other->Expect<Ready>().session, offer.session);

  other->FlipNow(offer);

  ExpectLiveBytes(3, {2, 1, 2, 3});
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());
  ExpectLiveBytes(2, {2, 1, 2, 1});
}

TEST_F(PartialVersionTest, AFlipInPlaceBringsTheWholeVersionAndItsWayBack) {
  Start(WeightReceiverOptions{.flip = FlipMode::kInPlace});
  auto publisher = OverVersionOne(kAandN);
  const std::byte* const address = receiver_->AcquireLive().Tensor(0, 0).data();

  publisher->Publish(publisher->MakePartialOffer(2, Live()));

  ExpectLiveBytes(2, {2, 1, 2, 1});
  EXPECT_EQ(receiver_->AcquireLive().Tensor(0, 0).data(), address);
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());
  ExpectLiveBytesOf(1);
}

// The fixture's clock, but by that of the thread that prepares a slot whatever it does takes a millisecond.
class SlowPreparerClock final : public Clock {
 public:
  explicit SlowPreparerClock(FakeClock& clock) : clock_(clock) {}
  TimePoint Now() override {
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    if (name.data() != std::string_view("session")) return clock_.Now();
    return clock_.Now() + std::chrono::milliseconds(++looks_);
  }
  std::chrono::system_clock::time_point WallNow() override { return clock_.WallNow(); }
  bool WaitUntil(CondVar& cond, Mutex& mu, TimePoint until) override REQUIRES(mu) {
    return clock_.WaitUntil(cond, mu, until);
  }

 private:
  FakeClock& clock_;
  std::atomic<int> looks_ = 0;
};

// The base is copied as slowly as decode steps want it: it pauses after each part until the test moves the time.
class SlowCarryOverTest : public PartialVersionTest {
 protected:
  static constexpr Duration kYears = std::chrono::hours(30'000);

  SlowCarryOverTest() {
    throttle_.StepTook(/*rows=*/1, std::chrono::milliseconds(1));
    Start(WeightReceiverOptions{.staging = {.throttle = &throttle_}, .max_session = kYears, .clock = &slow_});
  }
  ~SlowCarryOverTest() override { Stop(); }

  // However often the test moves the time, it does not come to an end.
  Offer LongOffer(const ScriptedPublisher& publisher, std::uint64_t number) {
    Offer offer = publisher.MakePartialOffer(number, Live());
    offer.time_left = kYears;
    return offer;
  }
  // All that is sent is there, and the copy is not.
  void StageBesideTheCopy(ScriptedPublisher& publisher, const Offer& offer) {
    publisher.BeginSession(offer);
    publisher.SendAllBuckets(offer);
    const ReceiverStatus status = receiver_->status();
    EXPECT_EQ(status.session->state, SessionState::kReceiving);
    EXPECT_EQ(status.session->received_bytes, status.session->total_bytes);
  }
  // The next message, for which the time moves on.
  SessionMessage NextInTime(ScriptedPublisher& publisher) {
    while (true) {
      Result<SessionMessage> message = publisher.channel().Receive(Deadline::After(clock_, Duration::zero()));
      if (message.ok()) return *std::move(message);
      if (message.status().code() != StatusCode::kDeadlineExceeded) return Abort{SessionId{}, message.status()};
      clock_.Advance(std::chrono::milliseconds(1));
      std::this_thread::yield();
    }
  }

  FakeClock standing_;
  StagingThrottle throttle_{/*slowdown=*/1.01, standing_};
  SlowPreparerClock slow_{clock_};
};

TEST_F(SlowCarryOverTest, BucketsComeBesideTheCopyAndTheSealWaitsForIt) {
  auto publisher = OverVersionOne(kAandN);
  const Offer offer = LongOffer(*publisher, 2);
  StageBesideTheCopy(*publisher, offer);

  publisher->Send(Seal{offer.session, publisher->SealOf(offer)});

  const SessionMessage answer = NextInTime(*publisher);
  ASSERT_TRUE(std::holds_alternative<Ready>(answer)) << MessageName(answer);
  EXPECT_GE(std::get<Ready>(answer).stage_ms, 9.0) << "the pause after a part, at the least";
  publisher->FlipNow(offer);
  ExpectLiveBytes(2, {2, 1, 2, 1});
}

TEST_F(SlowCarryOverTest, LiveMemoryThatHasChangedIsFoundWhicheverThreadProves) {
  auto publisher = OverVersionOne(kAandN);
  SpoilLive(/*rank=*/1, /*tensor=*/2);
  const Offer offer = LongOffer(*publisher, 2);
  StageBesideTheCopy(*publisher, offer);

  publisher->Send(Seal{offer.session, publisher->SealOf(offer)});

  const SessionMessage answer = NextInTime(*publisher);
  ASSERT_TRUE(std::holds_alternative<Abort>(answer)) << MessageName(answer);
  EXPECT_EQ(std::get<Abort>(answer).why.reason(), "digest_mismatch");
  EXPECT_EQ(live_number(), 1u);
  WaitUntilNoSessionIsOpen();
}

TEST_F(SlowCarryOverTest, WhatIsMissingIsNamedWhileTheCopyGoesOn) {
  auto publisher = OverVersionOne(kAandN);
  const Offer offer = LongOffer(*publisher, 2);
  publisher->BeginSession(offer);

  publisher->Send(Seal{offer.session, publisher->SealOf(offer)});

  EXPECT_EQ(publisher->Expect<Missing>().buckets.size(), publisher->plan().buckets.size());
  publisher->SendAllBuckets(offer);
  publisher->Send(Seal{offer.session, publisher->SealOf(offer)});
  EXPECT_TRUE(std::holds_alternative<Ready>(NextInTime(*publisher)));
}

TEST_F(SlowCarryOverTest, AnAbortEndsTheCopyAtOnceAndLetsGoOfTheBase) {
  auto publisher = OverVersionOne(kAandN);
  for (std::uint64_t number = 2; number <= 3; ++number) {
    const Offer offer = LongOffer(*publisher, number);
    StageBesideTheCopy(*publisher, offer);
    if (number == 3) publisher->Send(Seal{offer.session, publisher->SealOf(offer)});
    publisher->Send(Abort{offer.session, Status::Cancelled("cancelled", "by the test")});

    const Status why = publisher->Expect<Abort>().why;

    EXPECT_EQ(why.reason(), "cancelled");
    EXPECT_THAT(why.message(), HasSubstr("its base is still being copied"));
    WaitUntilNoSessionIsOpen();
    ExpectLiveBytesOf(1);
  }
  auto whole = Greeted();
  whole->Publish(whole->MakeOffer(4));
  whole->Publish(whole->MakeOffer(5));  // into the slot that was the base
  ExpectLiveBytesOf(5);
}

TEST_F(PartialVersionTest, WhoLeavesAfterTheCarryOverLeavesTheLiveVersionAndTheSlot) {
  auto publisher = OverVersionOne(kAandN);
  publisher->BeginSession(publisher->MakePartialOffer(2, Live()));

  publisher->Vanish();

  WaitUntilNoSessionIsOpen();
  ExpectLiveBytesOf(1);
  auto next = WithScope({"*"});
  next->Publish(next->MakePartialOffer(2, Live()));
  ExpectLiveBytesOf(2);
}

}  // namespace
}  // namespace bascule
