// A version that lies in memory already: it goes live by a session like any other, and nothing of it is ever written.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/worker.h"
#include "engine_side/weight_slots.h"
#include "tests/unit/engine_side/receiver_fixture.h"

namespace bascule {
namespace {

// Memory that a holder lends: a write is a fault. Says when it is let go.
class ReadOnlyBuffer final : public DeviceBuffer {
 public:
  ReadOnlyBuffer(std::span<const std::byte> content, int* lent) : size_(content.size()), lent_(lent) {
    void* const address = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(address != MAP_FAILED);
    data_ = static_cast<std::byte*>(address);
    std::ranges::copy(content, data_);
    CHECK(mprotect(data_, size_, PROT_READ) == 0);
    ++*lent_;
  }
  ~ReadOnlyBuffer() override {
    munmap(data_, size_);
    --*lent_;
  }
  std::span<std::byte> bytes() override { return {data_, size_}; }
  std::span<const std::byte> bytes() const override { return {data_, size_}; }
  bool writable() const override { return false; }

 private:
  std::byte* data_ = nullptr;
  const std::size_t size_;
  int* const lent_;
};

class AdoptionTest : public ReceiverTest {
 protected:
  // Version `number` as a publisher would have brought it: made by another receiver of the same layout.
  LentVersion Lent(std::uint64_t number, bool check = true) {
    WithVersion(number);
    const WeightLease lease = receiver_->AcquireLive();
    LentVersion lent{.version = lease.version(), .digests = lease.held().totals, .memory = {}};
    lent.memory.check = check;
    const Layout& layout = receiver_->layout();
    for (std::size_t r = 0; r < layout.ranks.size(); ++r) {
      std::vector<std::byte> content(static_cast<std::size_t>(WeightSlots::RankBytes(layout.ranks[r])));
      const std::byte* const first = lease.Tensor(static_cast<int>(r), 0).data();
      for (std::size_t t = 0; t < layout.ranks[r].tensors.size(); ++t) {
        const auto tensor = lease.Tensor(static_cast<int>(r), static_cast<int>(t));
        std::ranges::copy(tensor, content.begin() + (tensor.data() - first));
      }
      lent.memory.ranks.push_back(std::make_unique<ReadOnlyBuffer>(content, &lent_count_));
    }
    return lent;
  }
  // A receiver that has made `number` live.
  void WithVersion(std::uint64_t number) {
    Start(2);
    auto publisher = Greeted();
    publisher->Publish(publisher->MakeOffer(number));
  }
  void StartWithoutMemory(WeightReceiverOptions options = {}) {
    options.memory.when_reserved = options.flip == FlipMode::kShadow;
    Start(std::move(options));
  }

  int lent_count_ = 0;
};

TEST_F(AdoptionTest, ALentVersionGoesLiveWhereItLiesAndIsLetGoTwoVersionsLater) {
  LentVersion lent = Lent(7);
  const std::byte* const memory = lent.memory.ranks[0]->bytes().data();
  const WeightVersion version = lent.version;
  StartWithoutMemory();

  const Result<FlipReport> report = receiver_->Adopt(std::move(lent), Soon());

  ASSERT_TRUE(report.ok()) << report.status().ToString();
  EXPECT_EQ(report->version, version);
  ExpectLiveBytesOf(7);
  EXPECT_EQ(receiver_->AcquireLive().Tensor(0, 0).data(), memory) << "nothing is copied";
  const std::vector<HistoryEntry> rows = receiver_->History();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].kind, HistoryEntry::Kind::kInitial);
  EXPECT_TRUE(receiver_->status().Ready());
  auto publisher = Greeted();
  publisher->Publish(publisher->MakeOffer(8));
  ExpectLiveBytesOf(8);
  EXPECT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok()) << "the lent version is a way back like any other";
  ExpectLiveBytesOf(7);
  publisher->Publish(publisher->MakeOffer(9));
  EXPECT_EQ(lent_count_, 2);
  publisher->Publish(publisher->MakeOffer(10));
  ExpectLiveBytesOf(10);
  EXPECT_EQ(lent_count_, 0);
}

TEST_F(AdoptionTest, LentMemoryThatIsNotWhatItsDigestsSayNeverGoesLive) {
  LentVersion lent = Lent(7);
  const auto good = std::as_const(*lent.memory.ranks[1]).bytes();
  std::vector<std::byte> damaged(good.begin(), good.end());
  damaged[100] ^= std::byte{1};
  lent.memory.ranks[1] = std::make_unique<ReadOnlyBuffer>(damaged, &lent_count_);
  StartWithoutMemory();
  auto publisher = WithVersionOne();

  const Result<FlipReport> report = receiver_->Adopt(std::move(lent), Soon());

  EXPECT_EQ(report.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(report.status().reason(), "digest_mismatch");
  ExpectLiveBytesOf(1);
  EXPECT_EQ(receiver_->History().back().why.reason(), "digest_mismatch");
  publisher->Publish(publisher->MakeOffer(8));
  ExpectLiveBytesOf(8);
  EXPECT_EQ(lent_count_, 0);
}

TEST_F(AdoptionTest, PaddingThatIsNotZeroIsFoundInLentMemoryToo) {
  LentVersion lent = Lent(7);
  const auto good = std::as_const(*lent.memory.ranks[1]).bytes();
  std::vector<std::byte> damaged(good.begin(), good.end());
  damaged.back() ^= std::byte{1};  // the last row of v on rank 1
  lent.memory.ranks[1] = std::make_unique<ReadOnlyBuffer>(damaged, &lent_count_);
  StartWithoutMemory();

  const Result<FlipReport> report = receiver_->Adopt(std::move(lent), Soon());

  EXPECT_EQ(report.status().reason(), "digest_mismatch");
  EXPECT_NE(report.status().message().find("padding"), std::string::npos) << report.status().ToString();
  EXPECT_FALSE(receiver_->status().live);
}

TEST_F(AdoptionTest, WithoutACheckTheSealIsBelievedButMustAgreeWithItsVersion) {
  LentVersion lent = Lent(7, /*check=*/false);
  LentVersion forged = Lent(8, /*check=*/false);
  forged.digests[0].lane[0] ^= 1;
  StartWithoutMemory();

  EXPECT_TRUE(receiver_->Adopt(std::move(lent), Soon()).ok());
  const Result<FlipReport> report = receiver_->Adopt(std::move(forged), Soon());

  EXPECT_EQ(report.status().reason(), "digest_mismatch");
  ExpectLiveBytesOf(7);
  EXPECT_TRUE(receiver_->DigestLive().ok());
}

TEST_F(AdoptionTest, FlipsInPlaceRefuseMemoryThatCannotBeWritten) {
  LentVersion lent = Lent(7);
  Start(WeightReceiverOptions{.flip = FlipMode::kInPlace});

  EXPECT_EQ(receiver_->Adopt(std::move(lent), Soon()).status().reason(), "slot_read_only");
  EXPECT_EQ(lent_count_, 0);
}

TEST_F(AdoptionTest, LentMemoryOfAnotherSizeIsRefused) {
  LentVersion lent = Lent(7);
  LentVersion without_rank = Lent(8);
  lent.memory.ranks[1] = std::make_unique<ReadOnlyBuffer>(std::vector<std::byte>(64), &lent_count_);
  without_rank.memory.ranks.pop_back();
  StartWithoutMemory();

  EXPECT_EQ(receiver_->Adopt(std::move(lent), Soon()).status().reason(), "bad_lent_memory");
  EXPECT_EQ(receiver_->Adopt(std::move(without_rank), Soon()).status().reason(), "bad_lent_memory");
  EXPECT_TRUE(receiver_->History().empty());
}

TEST_F(AdoptionTest, WhatIsLentWaitsForItsTurnAndForItsNumber) {
  LentVersion lent = Lent(7);
  LentVersion old = Lent(2);
  StartWithoutMemory();
  auto publisher = Greeted();
  publisher->BeginSession(publisher->MakeOffer(5));

  EXPECT_EQ(receiver_->Adopt(std::move(lent), Soon()).status().reason(), "publisher_busy");
  publisher->Vanish();
  WaitUntilNoSessionIsOpen();
  auto next = Greeted();
  next->Publish(next->MakeOffer(6));
  EXPECT_EQ(receiver_->Adopt(std::move(old), Soon()).status().reason(), "stale_version");
  ExpectLiveBytesOf(6);
}

TEST_F(AdoptionTest, AnAdoptionEndsWhenNobodyWantsItAnyMore) {
  LentVersion lent = Lent(7);
  StartWithoutMemory();
  auto publisher = WithVersionOne();
  publisher->Publish(publisher->MakeOffer(2));
  std::stop_source stop;
  Result<FlipReport> report = Status::Internal("unset");
  {
    const WeightLease reader = receiver_->AcquireLive();
    EXPECT_TRUE(receiver_->Rollback(std::nullopt, Soon()).ok());  // what is kept, and would be the shadow, has a reader
    Worker adopting("adopting",
                    [&](std::stop_token) { report = receiver_->Adopt(std::move(lent), Soon(), stop.get_token()); });
    WaitFor([](const ReceiverStatus& status) { return status.session.has_value(); });

    stop.request_stop();
    adopting.Join();
  }

  EXPECT_EQ(report.status().reason(), "cancelled");
  ExpectLiveBytesOf(1);
  EXPECT_EQ(lent_count_, 0);
}

TEST_F(AdoptionTest, DerivedTensorsLieBehindLentMemoryInMemoryOfTheReceiver) {
  LentVersion lent = Lent(7);
  const LocalTensor first_row{"first_row_of_a", DType::kF32, {64}, {}};
  hooks_.finalize = [](const StagedWeights& staged) {
    for (int rank = 0; rank < 2; ++rank) {
      std::ranges::copy(staged.tensor(rank, 0).first(256), staged.derived(rank, 0).begin());
    }
    return OkStatus();
  };
  StartWithoutMemory(WeightReceiverOptions{.derived = {{first_row}, {first_row}}});

  ASSERT_TRUE(receiver_->Adopt(std::move(lent), Soon()).ok());

  ExpectLiveBytesOf(7);
  const WeightLease lease = receiver_->AcquireLive();
  const std::span<const std::byte> a = lease.Tensor(0, 0), derived = lease.Tensor(0, 4);
  EXPECT_TRUE(std::ranges::equal(a.first(256), derived));
  EXPECT_TRUE(receiver_->DigestLive().ok());
}

}  // namespace
}  // namespace bascule
