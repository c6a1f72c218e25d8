#include <gmock/gmock.h>

#include "kernels/digest.h"
#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

using ::testing::HasSubstr;

// Version 1 is live, version 2 is being received.
class DamageTest : public ReceiverTest {
 protected:
  DamageTest() : publisher_(WithVersionOne()), offer_(publisher_->MakeOffer(2)) { publisher_->BeginSession(offer_); }
  ~DamageTest() override {
    publisher_.reset();
    Stop();
  }

  std::vector<std::byte> Frame(std::uint32_t bucket, std::uint32_t attempt = 0) {
    return publisher_->Frame(offer_.session, 2, bucket, attempt);
  }
  BucketVerdict SendAs(std::uint32_t bucket, std::span<const std::byte> frame) {
    return publisher_->SendFrame(publisher_->plan().buckets[bucket].route, frame).verdict;
  }
  void SendFrom(std::uint32_t first) {
    for (std::uint32_t b = first; b < publisher_->plan().buckets.size(); ++b) {
      EXPECT_EQ(publisher_->SendBucket(offer_.session, 2, b), BucketVerdict::kGood) << b;
    }
  }
  void SealAndFlip() {
    publisher_->Send(Seal{offer_.session, publisher_->SealOf(2)});
    publisher_->Expect<Ready>();
    publisher_->FlipNow(offer_);
    ExpectLiveBytesOf(2);
  }
  // The session has ended so; live, memory and the next session are as they should be.
  Status ExpectAborted() {
    const Abort abort = publisher_->Expect<Abort>();
    EXPECT_EQ(abort.session, offer_.session);
    WaitUntilNoSessionIsOpen();
    EXPECT_EQ(receiver_->status().last_error, abort.why);
    EXPECT_EQ(receiver_->History().back().why, abort.why);
    EXPECT_FALSE(receiver_->History().back().committed);
    ExpectLiveBytesOf(1);
    publisher_->Publish(publisher_->MakeOffer(3));
    ExpectLiveBytesOf(3);
    return abort.why;
  }

  std::unique_ptr<ScriptedPublisher> publisher_;
  Offer offer_;
};

TEST_F(DamageTest, ABucketDamagedOnceIsSentAgainAndTheVersionIsRight) {
  auto frame = Frame(0);
  frame.back() ^= std::byte{1};

  EXPECT_EQ(SendAs(0, frame), BucketVerdict::kDamaged);
  EXPECT_EQ(publisher_->SendBucket(offer_.session, 2, 0, /*attempt=*/1), BucketVerdict::kGood);
  SendFrom(1);

  SealAndFlip();
}

TEST_F(DamageTest, ABucketDamagedTwiceEndsTheSessionByBucketTensorAndRank) {
  auto frame = Frame(0);
  frame.back() ^= std::byte{1};

  EXPECT_EQ(SendAs(0, frame), BucketVerdict::kDamaged);
  EXPECT_EQ(SendAs(0, frame), BucketVerdict::kDamaged);

  const Status why = ExpectAborted();
  EXPECT_EQ(why.reason(), "bucket_damaged");
  EXPECT_THAT(why.message(), HasSubstr("bucket 0"));
  EXPECT_THAT(why.message(), HasSubstr("tensor "));
  EXPECT_THAT(why.message(), HasSubstr("engine rank "));
}

TEST_F(DamageTest, DamageInOneBucketDoesNotCountAgainstAnother) {
  for (std::uint32_t b = 0; b < publisher_->plan().buckets.size(); ++b) {
    auto frame = Frame(b);
    frame[static_cast<std::size_t>(PayloadOffset(std::ssize(publisher_->plan().buckets[b].slices)))] ^= std::byte{0x80};
    EXPECT_EQ(SendAs(b, frame), BucketVerdict::kDamaged);
    EXPECT_EQ(publisher_->SendBucket(offer_.session, 2, b, 1), BucketVerdict::kGood);
  }

  SealAndFlip();
}

TEST_F(DamageTest, ADigestThatWasDamagedIsDamageToo) {
  auto frame = Frame(1);
  frame[kBucketHeaderBytes] ^= std::byte{1};

  EXPECT_EQ(SendAs(1, frame), BucketVerdict::kDamaged);
}

TEST_F(DamageTest, ABucketThatComesTwiceIsDroppedAndWritesNothing) {
  EXPECT_EQ(publisher_->SendBucket(offer_.session, 2, 0), BucketVerdict::kGood);
  auto other_bytes = publisher_->Frame(offer_.session, /*number=*/9, 0);

  EXPECT_EQ(SendAs(0, other_bytes), BucketVerdict::kDuplicate);
  SendFrom(1);
  publisher_->Send(Seal{offer_.session, publisher_->SealOf(2)});
  publisher_->Expect<Ready>();
  EXPECT_EQ(SendAs(0, other_bytes), BucketVerdict::kDuplicate) << "also when the version waits for its flip";

  publisher_->FlipNow(offer_);
  ExpectLiveBytesOf(2);
}

TEST_F(DamageTest, I4WhatIsMissingIsNamedAndMayBeSentOnceMore) {
  SendFrom(2);
  publisher_->Send(Seal{offer_.session, publisher_->SealOf(2)});
  EXPECT_EQ(publisher_->Expect<Missing>().buckets, (std::vector<std::uint32_t>{0, 1}));

  EXPECT_EQ(publisher_->SendBucket(offer_.session, 2, 1, 1), BucketVerdict::kGood);
  EXPECT_EQ(publisher_->SendBucket(offer_.session, 2, 0, 1), BucketVerdict::kGood);

  SealAndFlip();
}

// C-013.
TEST_F(DamageTest, I4BucketsThatAreMissingAtTheSecondSealEndTheSession) {
  SendFrom(1);
  publisher_->Send(Seal{offer_.session, publisher_->SealOf(2)});
  EXPECT_EQ(publisher_->Expect<Missing>().buckets, (std::vector<std::uint32_t>{0}));

  publisher_->Send(Seal{offer_.session, publisher_->SealOf(2)});

  const Status why = ExpectAborted();
  EXPECT_EQ(why.reason(), "buckets_missing");
  const Plan& plan = publisher_->plan();
  for (const Slice& slice : plan.buckets[0].slices) {
    EXPECT_THAT(why.message(), HasSubstr(plan.tensors[static_cast<std::size_t>(slice.tensor)].name));
  }
}

TEST_F(DamageTest, AFrameWithAnUnreadableHeaderIsFoundMissingAndSentAgain) {
  auto frame = Frame(0);
  frame[8] ^= std::byte{1};

  const BucketAck ack = publisher_->SendFrame(publisher_->plan().buckets[0].route, frame);
  EXPECT_EQ(ack, (BucketAck{kNoBucket, 0, BucketVerdict::kDamaged}));
  SendFrom(1);
  publisher_->Send(Seal{offer_.session, publisher_->SealOf(2)});
  EXPECT_EQ(publisher_->Expect<Missing>().buckets, (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(publisher_->SendBucket(offer_.session, 2, 0, 1), BucketVerdict::kGood);

  SealAndFlip();
}

TEST_F(DamageTest, ASecondUnreadableHeaderEndsTheSession) {
  const std::vector<std::byte> garbage(64);
  SendAs(0, garbage);

  SendAs(0, garbage);

  EXPECT_EQ(ExpectAborted().reason(), "bucket_damaged");
}

TEST_F(DamageTest, ABucketBeyondThePlanOrOnAnotherRouteEndsTheSession) {
  BucketHeader header;
  header.session = offer_.session;
  header.bucket = static_cast<std::uint32_t>(publisher_->plan().buckets.size());
  std::vector<std::byte> frame(kBucketHeaderBytes);
  SealBucketFrame(header, frame);

  EXPECT_EQ(publisher_->SendFrame(0, frame).verdict, BucketVerdict::kFenced);

  EXPECT_EQ(ExpectAborted().reason(), "bucket_outside_plan");
}

TEST_F(DamageTest, ABucketOnARouteThatIsNotItsOwnEndsTheSession) {
  const int own = publisher_->plan().buckets[0].route;
  const int other = own == 0 ? 1 : 0;

  EXPECT_EQ(publisher_->SendFrame(other, Frame(0)).verdict, BucketVerdict::kFenced);

  EXPECT_EQ(ExpectAborted().reason(), "bucket_outside_plan");
}

TEST_F(DamageTest, ASealWithAnotherDigestIsRefusedByTensorAndRanks) {
  SendFrom(0);
  ManifestSeal seal = publisher_->SealOf(2);
  seal.digests[3].lane[2] += 1;
  seal.version_digest = VersionDigestOf(publisher_->plan().tensors, seal.digests);

  publisher_->Send(Seal{offer_.session, seal});

  const Status why = ExpectAborted();
  EXPECT_EQ(why.reason(), "digest_mismatch");
  EXPECT_THAT(why.message(), HasSubstr("tensor v on engine ranks 0,1"));
}

TEST_F(DamageTest, ASealWhoseVersionDigestIsNotThatOfItsTensorsIsRefused) {
  SendFrom(0);
  ManifestSeal seal = publisher_->SealOf(2);
  seal.version_digest.bytes[5] ^= std::byte{1};

  publisher_->Send(Seal{offer_.session, seal});

  EXPECT_EQ(ExpectAborted().reason(), "digest_mismatch");
}

TEST_F(DamageTest, ASealWithTooFewDigestsIsRefused) {
  SendFrom(0);
  ManifestSeal seal = publisher_->SealOf(2);
  seal.digests.pop_back();

  publisher_->Send(Seal{offer_.session, seal});

  EXPECT_EQ(ExpectAborted().reason(), "digest_mismatch");
}

// Bytes of another version arrive intact and in place, with digests of their own: only the totals can tell.
TEST_F(DamageTest, AStaleBucketOfAnotherVersionIsFoundAtTheSeal) {
  EXPECT_EQ(SendAs(0, publisher_->Frame(offer_.session, /*number=*/1, 0)), BucketVerdict::kGood);
  SendFrom(1);

  publisher_->Send(Seal{offer_.session, publisher_->SealOf(2)});

  EXPECT_EQ(ExpectAborted().reason(), "digest_mismatch");
}

// C-019.
// A sender whose copy of a replicated tensor differs digests its own bytes truly; the total does not count them.
TEST_F(DamageTest, AReplicaWithOtherBytesThanItsOwnerIsFoundAtTheSeal) {
  const Plan& plan = publisher_->plan();
  std::optional<std::uint32_t> bucket_of_replica;
  for (std::uint32_t b = 0; b < plan.buckets.size(); ++b) {
    auto frame = Frame(b);
    const Bucket& bucket = plan.buckets[b];
    for (std::size_t s = 0; s < bucket.slices.size(); ++s) {
      const Slice& slice = bucket.slices[s];
      if (slice.counts) continue;
      bucket_of_replica = b;
      const auto payload = std::span(frame).subspan(
          static_cast<std::size_t>(PayloadOffset(std::ssize(bucket.slices)) + slice.payload_offset),
          static_cast<std::size_t>(slice.payload_bytes));
      payload[2] ^= std::byte{0x10};
      const TensorSpec& spec = plan.tensors[static_cast<std::size_t>(slice.tensor)];
      WriteSliceDigest(frame, static_cast<std::int64_t>(s), DigestRunOnHost(KeyOf(spec), 0, payload));
      SealBucketFrame(*ParseBucketHeader(frame), frame);
    }
    EXPECT_EQ(SendAs(b, frame), BucketVerdict::kGood) << b;
  }
  ASSERT_TRUE(bucket_of_replica) << "the layouts give tensor b to both engine ranks";

  publisher_->Send(Seal{offer_.session, publisher_->SealOf(2)});

  const Status why = ExpectAborted();
  EXPECT_EQ(why.reason(), "replicas_differ");
  EXPECT_THAT(why.message(), HasSubstr("tensor b"));
}

}  // namespace
}  // namespace bascule
