#include <gmock/gmock.h>

#include <thread>

#include "base/worker.h"
#include "tests/unit/engine_side/faulty_copier.h"
#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

using ::testing::HasSubstr;
using Fault = FaultyCopier::Fault;

constexpr int kCopiesOfBlock = 3;
constexpr int kCopiesOfExchange = 2 * kCopiesOfBlock;  // a block on each of two engine ranks

class InPlaceTest : public ReceiverTest {
 protected:
  InPlaceTest() { Start(WeightReceiverOptions{.flip = FlipMode::kInPlace, .copier = &copier_}); }

  std::vector<const std::byte*> LiveAddresses() {
    const WeightLease lease = receiver_->AcquireLive();
    return {lease.Tensor(0, 0).data(), lease.Tensor(0, 3).data(), lease.Tensor(1, 0).data(), lease.Tensor(1, 2).data()};
  }
  std::unique_ptr<ScriptedPublisher> WithScope(const std::vector<std::string>& scope) {
    auto publisher = Connect();
    publisher->Greet(PlanOptions{.bucket_bytes = 4096, .ignore = {}, .scope = scope});
    return publisher;
  }
  // Publishes version `number` up to its flip, which fails for the reason that it returns.
  Status FailedFlip(ScriptedPublisher& publisher, std::uint64_t number) {
    const Offer offer = publisher.MakeOffer(number);
    publisher.BeginSession(offer);
    publisher.StageAndSeal(offer);
    publisher.Send(Flip{offer.session});
    return publisher.Expect<Abort>().why;
  }

  FaultyCopier copier_;
};

TEST_F(InPlaceTest, NoAddressOfTheLiveWeightsChangesWhateverGoesLive) {
  auto publisher = WithVersionOne();
  const auto addresses = LiveAddresses();

  for (std::uint64_t number = 2; number <= 4; ++number) {
    publisher->Publish(publisher->MakeOffer(number));
    ExpectLiveBytesOf(number);
    EXPECT_EQ(LiveAddresses(), addresses);
  }
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());

  ExpectLiveBytesOf(3);
  EXPECT_EQ(LiveAddresses(), addresses);
  EXPECT_EQ(receiver_->status().kept->number, 4u);
  ASSERT_TRUE(receiver_->Rollback(4, Soon()).ok()) << "and forth again";
  ExpectLiveBytesOf(4);
}

// C-049.
TEST_F(InPlaceTest, I10WhicheverCopyFailsTheOldVersionIsLiveAndTheNextOneComes) {
  auto publisher = WithVersionOne();
  for (int copy = 0; copy < kCopiesOfExchange; ++copy) {
    copier_.FailAt(copy, Fault::kFails);
    const std::uint64_t invalidations = hooks_.invalidated().size();

    const Status why = FailedFlip(*publisher, 2);

    EXPECT_EQ(why.reason(), "flip_undone") << why.ToString();
    EXPECT_THAT(why.message(), HasSubstr("copy_failed"));
    ExpectLiveBytesOf(1);
    EXPECT_EQ(hooks_.invalidated().size(), invalidations) << "caches of the old version are good still";
    EXPECT_EQ(receiver_->History().back().why.reason(), "flip_undone");
  }
  publisher->Publish(publisher->MakeOffer(2));
  ExpectLiveBytesOf(2);
}

TEST_F(InPlaceTest, I10ACopyThatFailsDuringARollbackLeavesTheVersionThatWasLive) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));
  copier_.FailAt(kCopiesOfExchange - 1, Fault::kFails);

  EXPECT_EQ(receiver_->Rollback(std::nullopt, Soon()).status().reason(), "flip_undone");

  ExpectLiveBytesOf(2);
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());
  ExpectLiveBytesOf(1);
}

// C-049.
// Every copy of an exchange is one of the old bytes aside, of the new ones in, or of the old ones out.
TEST_F(InPlaceTest, P2BytesThatChangeOnTheirWayAreNeverServed) {
  for (int copy = 0; copy < kCopiesOfExchange; ++copy) {
    Start(WeightReceiverOptions{.flip = FlipMode::kInPlace, .copier = &copier_});
    auto publisher = WithVersionOne();
    copier_.FailAt(copy, Fault::kCopiesOtherBytes);
    const Offer offer = publisher->MakeOffer(2);
    publisher->BeginSession(offer);
    publisher->StageAndSeal(offer);
    publisher->Send(Flip{offer.session});

    const SessionMessage answer = publisher->Next();

    if (std::holds_alternative<Committed>(answer)) {
      ExpectLiveBytesOf(2);  // it was the old version that was damaged on its way out
      const Status back = receiver_->Rollback(std::nullopt, Soon()).status();
      EXPECT_EQ(back.reason(), "flip_undone") << "the kept version is damaged and does not go live";
      ExpectLiveBytesOf(2);
    } else {
      EXPECT_EQ(std::get<Abort>(answer).why.reason(), "flip_undone");
      EXPECT_THAT(std::get<Abort>(answer).why.message(), HasSubstr("digest_mismatch"));
      ExpectLiveBytesOf(1);
    }
  }
}

// C-011.
TEST_F(InPlaceTest, I10WithoutAWayBackTheReplicaRefusesToServeUntilAVersionIsLoadedAnew) {
  auto publisher = WithVersionOne();
  copier_.FailAt(4, Fault::kFailsForGood);

  EXPECT_EQ(FailedFlip(*publisher, 2).reason(), "live_lost");

  EXPECT_TRUE(receiver_->AcquireLive().empty());
  EXPECT_FALSE(receiver_->status().live);
  EXPECT_FALSE(receiver_->status().kept);
  EXPECT_EQ(receiver_->DigestLive().status().reason(), "nothing_live");
  copier_.FailAt(0, Fault::kNone);
  auto next = Greeted();
  EXPECT_EQ(next->reply().highest_number, 1u) << "whoever starts anew has to go on above it";
  next->Publish(next->MakeOffer(3));
  ExpectLiveBytesOf(3);
  next->Publish(next->MakeOffer(4));
  ExpectLiveBytesOf(4);
}

TEST_F(InPlaceTest, I3WhoHasLostItsWeightsTakesTheSameBytesUnderTheNumberTheyHadAndNoOthers) {
  auto publisher = WithVersionOne();
  copier_.FailAt(4, Fault::kFailsForGood);
  ASSERT_EQ(FailedFlip(*publisher, 2).reason(), "live_lost");
  copier_.FailAt(0, Fault::kNone);
  auto next = Greeted();
  Offer other = next->MakeOffer(1);
  other.manifest.new_run = true;  // so says a publisher that finds nothing live
  next->BeginSession(other);
  next->OpenRoutes();
  for (std::uint32_t bucket = 0; bucket < next->plan().buckets.size(); ++bucket) {
    EXPECT_EQ(next->SendBucket(other.session, /*number=*/7, bucket), BucketVerdict::kGood);
  }

  next->Send(Seal{.session = other.session, .manifest = next->SealOf(7)});

  EXPECT_EQ(next->Expect<Abort>().why.reason(), "version_reused");
  EXPECT_FALSE(receiver_->status().live);
  next->Publish(next->MakeOffer(1));
  ExpectLiveBytesOf(1);
}

TEST_F(InPlaceTest, I1AFlipWaitsForWhoReadsTheLiveWeights) {
  auto publisher = WithVersionOne();
  WeightLease reader = receiver_->AcquireLive();
  const Offer offer = publisher->MakeOffer(2);
  publisher->BeginSession(offer);
  publisher->StageAndSeal(offer);
  const int copies = copier_.copies();
  publisher->Send(Flip{offer.session});
  while (hooks_.safe_points() < 2) std::this_thread::yield();  // the first version's, and one that was in vain

  EXPECT_EQ(copier_.copies(), copies);
  EXPECT_EQ(reader.version().number, 1u);
  reader = WeightLease();

  publisher->Expect<Committed>();
  ExpectLiveBytesOf(2);
}

TEST_F(InPlaceTest, I8AFlipWaitsForAReaderNoLongerThanItsDeadline) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));
  const WeightLease reader = receiver_->AcquireLive();
  Status late;
  {
    Worker operation("rollback", [&](std::stop_token) {
      late = receiver_->Rollback(std::nullopt, Deadline::After(clock_, std::chrono::seconds(5))).status();
    });
    while (hooks_.safe_points() < 3) std::this_thread::yield();
    clock_.Advance(std::chrono::seconds(5));
  }

  EXPECT_EQ(late.reason(), "live_leased");
  EXPECT_EQ(reader.version().number, 2u);
  EXPECT_EQ(receiver_->status().kept->number, 1u);
}

// C-017.
TEST_F(InPlaceTest, TensorsThatAreTheSameInBothVersionsAreLeftAlone) {
  WithVersionOne();
  auto publisher = WithScope({"n"});  // on the first rank alone
  const int copies = copier_.copies();

  publisher->Publish(publisher->MakePartialOffer(2, *receiver_->status().live));

  EXPECT_EQ(copier_.copies() - copies, kCopiesOfBlock);
  ExpectLiveBytes(2, {1, 1, 2, 1});
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());
  EXPECT_EQ(copier_.copies() - copies, 2 * kCopiesOfBlock);
  ExpectLiveBytesOf(1);
}

TEST_F(InPlaceTest, AVersionOfTheSameBytesIsExchangedForNothing) {
  auto publisher = WithVersionOne();
  const Offer offer = publisher->MakeOffer(2);
  const int copies = copier_.copies();
  publisher->BeginSession(offer);
  for (std::uint32_t bucket = 0; bucket < publisher->plan().buckets.size(); ++bucket) {
    ASSERT_EQ(publisher->SendBucket(offer.session, /*number=*/1, bucket), BucketVerdict::kGood);
  }
  publisher->Send(Seal{offer.session, publisher->SealOf(1)});
  ASSERT_EQ(publisher->Expect<Ready>().session, offer.session);

  publisher->FlipNow(offer);

  EXPECT_EQ(copier_.copies(), copies);
  ExpectLiveBytes(2, {1, 1, 1, 1});
  EXPECT_EQ(receiver_->status().kept->number, 1u);
}

// C-049.
TEST_F(InPlaceTest, I10WhicheverCopyOfAPartialVersionFailsTheOldVersionIsLive) {
  WithVersionOne();
  auto publisher = WithScope({"n"});
  for (int copy = 0; copy < kCopiesOfBlock; ++copy) {
    copier_.FailAt(copy, Fault::kFails);
    const Offer offer = publisher->MakePartialOffer(2, *receiver_->status().live);
    publisher->BeginSession(offer);
    publisher->StageAndSeal(offer);
    publisher->Send(Flip{offer.session});

    EXPECT_EQ(publisher->Expect<Abort>().why.reason(), "flip_undone");
    ExpectLiveBytesOf(1);
  }
}

// P2, of what is written.
TEST_F(InPlaceTest, P2BytesOfAPartialVersionThatChangeOnTheirWayAreNotServed) {
  WithVersionOne();
  auto publisher = WithScope({"n"});
  copier_.FailAt(/*copy=*/1, Fault::kCopiesOtherBytes);  // the new bytes, on their way in
  const Offer offer = publisher->MakePartialOffer(2, *receiver_->status().live);
  publisher->BeginSession(offer);
  publisher->StageAndSeal(offer);

  publisher->Send(Flip{offer.session});

  const Status why = publisher->Expect<Abort>().why;
  EXPECT_EQ(why.reason(), "flip_undone");
  EXPECT_THAT(why.message(), HasSubstr("digest_mismatch: tensor n on engine rank 0"));
  ExpectLiveBytesOf(1);
}

TEST_F(InPlaceTest, ThreeSlotsAreRefused) {
  WeightReceiverOptions options{.layout = EngineLayoutForTest(), .slot_count = 3, .flip = FlipMode::kInPlace};
  options.clock = &clock_;

  EXPECT_EQ(WeightReceiver::Create(std::move(options), hooks_).status().reason(), "bad_options");
}

}  // namespace
}  // namespace bascule
