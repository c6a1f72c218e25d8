// Tensors that an engine makes itself of each version: here the sums of the rows of "a", on each of two engine ranks.
#include <gmock/gmock.h>

#include <cstring>
#include <numeric>
#include <random>

#include "tests/unit/engine_side/faulty_copier.h"
#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kRows = 32;
constexpr std::int64_t kColumns = 64;
constexpr int kFirstDerived[] = {4, 3};  // behind the received tensors of each rank

float ElementOf(std::span<const std::byte> tensor, std::int64_t index) {
  float value = 0;
  std::memcpy(&value, tensor.data() + index * 4, 4);
  return value;
}

// Adds to what is there, so that memory which is not zero shows.
Status AddRowSums(const StagedWeights& staged) {
  for (int rank = 0; rank < 2; ++rank) {
    const std::span<std::byte> sums = staged.derived(rank, 0);
    for (std::int64_t row = 0; row < kRows; ++row) {
      float sum = ElementOf(sums, row);
      for (std::int64_t i = 0; i < kColumns; ++i) sum += ElementOf(staged.tensor(rank, 0), row * kColumns + i);
      std::memcpy(sums.data() + row * 4, &sum, 4);
    }
  }
  return OkStatus();
}

class FinalizeTest : public ReceiverTest {
 protected:
  FinalizeTest() { Start({}); }

  void Start(WeightReceiverOptions options) {
    options.derived = {{{.name = "sums", .dtype = DType::kF32, .shape = {kRows}}},
                       {{.name = "sums", .dtype = DType::kF32, .shape = {kRows}}}};
    ReceiverTest::Start(std::move(options));
    hooks_.finalize = [this](const StagedWeights& staged) {
      made_.push_back(staged.version);
      return AddRowSums(staged);
    };
  }

  // What was received and what was made of it are those of version `number`.
  void ExpectLive(std::uint64_t number) {
    ExpectLiveBytesOf(number);
    const WeightLease lease = receiver_->AcquireLive();
    for (int rank = 0; rank < 2; ++rank) {
      for (std::int64_t row = 0; row < kRows; ++row) {
        float sum = 0;
        for (std::int64_t i = 0; i < kColumns; ++i) {
          sum += ElementForTest(number, 0, (rank * kRows + row) * kColumns + i);
        }
        EXPECT_EQ(ElementOf(lease.Tensor(rank, kFirstDerived[rank]), row), sum) << "rank " << rank << " row " << row;
      }
    }
  }

  std::vector<WeightVersion> made_;
};

// C-014.
TEST_F(FinalizeTest, EachVersionHasItsOwnDerivedTensorsMadeOnce) {
  auto publisher = WithVersionOne();
  ExpectLive(1);

  for (std::uint64_t number = 2; number <= 4; ++number) {
    const Offer offer = publisher->MakeOffer(number);
    publisher->Publish(offer);

    ExpectLive(number);
    EXPECT_EQ(made_.size(), number);
    EXPECT_EQ(made_.back(), publisher->VersionOf(offer));
  }
}

// C-013, C-014. Parts of a tensor come in one bucket or in many, apart and in any order.
TEST_F(FinalizeTest, HoweverAVersionIsCutAndInWhateverOrderItComesItIsTheSameAndMadeOnce) {
  std::mt19937 random(13);
  std::uint64_t number = 0;
  for (const std::int64_t bucket_bytes : {4096, 8192, 1 << 20}) {
    auto publisher = Connect();
    publisher->Greet(bucket_bytes);
    std::vector<std::uint32_t> order(publisher->plan().buckets.size());
    std::iota(order.begin(), order.end(), 0U);
    for (int round = 0; round < 20; ++round) {
      SCOPED_TRACE(testing::Message() << order.size() << " buckets, round " << round);
      std::ranges::shuffle(order, random);
      const Offer offer = publisher->MakeOffer(++number);
      publisher->BeginSession(offer);
      for (const std::uint32_t bucket : order) {
        EXPECT_EQ(publisher->SendBucket(offer.session, number, bucket), BucketVerdict::kGood);
      }
      publisher->Send(Seal{.session = offer.session, .manifest = publisher->SealOf(number)});
      publisher->Expect<Ready>();
      publisher->FlipNow(offer);

      ExpectLive(number);
      EXPECT_EQ(made_.size(), number);
    }
  }
}

TEST_F(FinalizeTest, ItRunsWhenEveryByteIsProvenAndTheOldVersionStillLive) {
  auto publisher = WithVersionOne();
  std::uint64_t live = 0;
  std::int64_t wrong = 0;
  hooks_.finalize = [&](const StagedWeights& staged) {
    live = live_number();
    for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
      wrong += ElementOf(staged.tensor(1, 0), i) != ElementForTest(2, 0, kRows * kColumns + i);
    }
    return OkStatus();
  };

  publisher->Publish(publisher->MakeOffer(2));

  EXPECT_EQ(live, 1U);
  EXPECT_EQ(wrong, 0);
}

TEST_F(FinalizeTest, NothingIsMadeOfAVersionThatIsNotProven) {
  auto publisher = WithVersionOne();
  const Offer offer = publisher->MakeOffer(2);
  publisher->BeginSession(offer);
  publisher->SendAllBuckets(offer);
  ManifestSeal seal = publisher->SealOf(2);
  seal.digests[0].lane[0] ^= 1;

  publisher->Send(Seal{.session = offer.session, .manifest = seal});

  EXPECT_EQ(publisher->Expect<Abort>().why.reason(), "digest_mismatch");
  EXPECT_EQ(made_.size(), 1U);
}

// C-049.
TEST_F(FinalizeTest, AFailureEndsTheSessionWithTheEnginesWordsAndChangesNothingLive) {
  auto publisher = WithVersionOne();
  hooks_.finalize = [](const StagedWeights& staged) {
    std::ranges::fill(staged.derived(0, 0), std::byte{0xAB});
    return Status::InvalidArgument("not_finite", "row 7 of a");
  };
  const Offer offer = publisher->MakeOffer(2);
  publisher->BeginSession(offer);
  publisher->SendAllBuckets(offer);

  publisher->Send(Seal{.session = offer.session, .manifest = publisher->SealOf(2)});
  const Status why = publisher->Expect<Abort>().why;

  EXPECT_EQ(why.code(), StatusCode::kAborted);
  EXPECT_EQ(why.reason(), "finalize_failed");
  EXPECT_THAT(why.message(), HasSubstr("not_finite: row 7 of a"));
  ExpectLive(1);
  WaitUntilNoSessionIsOpen();
  hooks_.finalize = AddRowSums;
  publisher->Publish(publisher->MakeOffer(2));
  ExpectLive(2);
}

TEST_F(FinalizeTest, ARollbackBringsBackWhatWasMadeOfTheKeptVersion) {
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));

  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());

  ExpectLive(1);
  EXPECT_EQ(made_.size(), 2U);
  EXPECT_TRUE(receiver_->DigestLive().ok());
}

TEST_F(FinalizeTest, AScrubFindsAFlippedBitOfADerivedTensor) {
  auto publisher = WithVersionOne();
  const WeightLease lease = receiver_->AcquireLive();
  ASSERT_TRUE(receiver_->DigestLive().ok());

  const_cast<std::byte&>(lease.Tensor(1, kFirstDerived[1])[9]) ^= std::byte{16};
  const Status scrub = receiver_->DigestLive().status();

  EXPECT_EQ(scrub.reason(), "digest_mismatch");
  EXPECT_THAT(scrub.message(), HasSubstr("derived tensor sums on engine rank 1"));
}

TEST_F(FinalizeTest, AFlipInPlaceExchangesAndProvesDerivedTensorsToo) {
  Start({.flip = FlipMode::kInPlace});
  auto publisher = WithVersionOne();
  const std::byte* const address = receiver_->AcquireLive().Tensor(0, kFirstDerived[0]).data();

  publisher->Publish(publisher->MakeOffer(2));
  ExpectLive(2);
  ASSERT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());

  ExpectLive(1);
  EXPECT_EQ(receiver_->AcquireLive().Tensor(0, kFirstDerived[0]).data(), address);
}

// Somebody writes to the staged tensor after it was made: the proof of live memory sees it, and the exchange is undone.
TEST_F(FinalizeTest, AFlipInPlaceOfADamagedDerivedTensorIsUndone) {
  Start({.flip = FlipMode::kInPlace});
  auto publisher = WithVersionOne();
  std::span<std::byte> staged_sums;
  hooks_.finalize = [&](const StagedWeights& staged) {
    staged_sums = staged.derived(0, 0);
    return AddRowSums(staged);
  };
  const Offer offer = publisher->MakeOffer(2);
  publisher->BeginSession(offer);
  publisher->StageAndSeal(offer);
  staged_sums[5] ^= std::byte{1};

  publisher->Send(Flip{offer.session});
  const Status why = publisher->Expect<Abort>().why;

  EXPECT_EQ(why.reason(), "flip_undone");
  EXPECT_THAT(why.message(), HasSubstr("derived tensor sums on engine rank 0"));
  ExpectLive(1);
}

TEST_F(FinalizeTest, DerivedTensorsThatCannotBeAreRefused) {
  const auto reason_of = [&](std::vector<std::vector<LocalTensor>> derived) {
    WeightReceiverOptions options{.layout = EngineLayoutForTest(), .derived = std::move(derived)};
    options.listeners = {transport_.get()};
    return WeightReceiver::Create(std::move(options), hooks_).status().reason();
  };
  const LocalTensor good{.name = "sums", .dtype = DType::kF32, .shape = {kRows}};
  LocalTensor taken = good;
  taken.name = "a";
  LocalTensor strided = good;
  strided.stride = {2};

  EXPECT_EQ(reason_of({{good}}), "bad_layout");
  EXPECT_EQ(reason_of({{good}, {taken}}), "bad_layout");
  EXPECT_EQ(reason_of({{good}, {strided}}), "bad_layout");
  EXPECT_EQ(reason_of({{good}, {}}), "");
}

}  // namespace
}  // namespace bascule
