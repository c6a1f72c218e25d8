#include "bridge/send/rank_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>

#include "bridge/plan/planner.h"
#include "tests/support/scripted_engine/sharded_trainer.h"

namespace bascule {
namespace {

using testing::ElementsAre;

// A route whose receiver answers at once, as told.
class AnsweringSender final : public BucketSender {
 public:
  using Answer = std::function<BucketAck(const BucketHeader&)>;
  AnsweringSender(std::int64_t frame_bytes, std::int32_t credits, Answer answer)
      : frame_(static_cast<std::size_t>(frame_bytes)), credits_(credits), answer_(std::move(answer)) {}

  std::int64_t frame_bytes() const override { return static_cast<std::int64_t>(frame_.size()); }
  std::int32_t credits() const override { return credits_; }
  bool wants_checksum() const override { return false; }
  bool HasCredit() const override { return std::cmp_less(unread_.size(), credits_); }
  std::span<std::byte> Acquire() override {
    CHECK(HasCredit());
    return frame_;
  }
  Status Send(std::size_t bytes) override {
    const auto header = ParseBucketHeader(std::span<const std::byte>(frame_).first(bytes));
    CHECK(header.ok());
    sent.push_back(header->bucket);
    unread_.push_back(answer_(*header));
    most_under_way = std::max(most_under_way, unread_.size());
    return OkStatus();
  }
  Result<BucketAck> NextAck(Deadline) override {
    if (unread_.empty()) return Status::DeadlineExceeded("deadline");
    const BucketAck ack = unread_.front();
    unread_.pop_front();
    return ack;
  }
  void Cancel() override {}

  std::vector<std::uint32_t> sent;
  std::size_t most_under_way = 0;

 private:
  std::vector<std::byte> frame_;
  const std::int32_t credits_;
  const Answer answer_;
  std::deque<BucketAck> unread_;
};

BucketAck Good(const BucketHeader& header) { return {.bucket = header.bucket, .attempt = header.attempt}; }

class RankSenderTest : public testing::Test {
 protected:
  RankSenderTest() {
    auto plan = MakePlan(source_.layout(), ShardedTrainer::EngineLayout(1, 200), {.bucket_bytes = 4096});
    CHECK(plan.ok());
    plan_ = std::move(*plan);
    CHECK(plan_.routes.size() == 1 && plan_.buckets.size() > 4);
    for (std::uint32_t b = 0; b < plan_.buckets.size(); ++b) all_.push_back(b);
  }

  Status Run(AnsweringSender::Answer answer, std::int32_t credits = 2) {
    packer_.emplace(plan_, source_);
    auto sender = std::make_unique<AnsweringSender>(MaxFrameBytes(plan_), credits, std::move(answer));
    route_ = sender.get();
    routes_.clear();
    routes_.push_back(std::move(sender));
    rank_.emplace(*packer_, routes_, SessionId{.value = 1}, Deadline::At(TimePoint()), /*pacer=*/nullptr,
                  stop_.get_token());
    return rank_->Run(all_, 0);
  }

  ShardedTrainer trainer_{/*trainer_ranks=*/1, /*rows=*/200};
  const TensorSource source_ = trainer_.Source();
  Plan plan_;
  std::vector<std::uint32_t> all_;
  std::optional<BucketPacker> packer_;
  std::vector<std::unique_ptr<BucketSender>> routes_;
  AnsweringSender* route_ = nullptr;
  std::stop_source stop_;
  std::optional<RankSender> rank_;
};

TEST_F(RankSenderTest, BucketsGoInPlanOrderWithNeverMoreUnderWayThanCredits) {
  ASSERT_TRUE(Run(Good, /*credits=*/3).ok());

  EXPECT_EQ(route_->sent, all_);
  EXPECT_EQ(route_->most_under_way, 3U);
}

TEST_F(RankSenderTest, ADamagedBucketGoesOnceMoreAndCountsOnceInTheTotals) {
  ASSERT_TRUE(Run(Good).ok());
  const std::vector<TensorDigest> totals = rank_->totals();

  const Status status = Run([](const BucketHeader& header) {
    return BucketAck{
        .bucket = header.bucket,
        .attempt = header.attempt,
        .verdict = header.bucket == 2 && header.attempt == 0 ? BucketVerdict::kDamaged : BucketVerdict::kGood};
  });

  EXPECT_TRUE(status.ok());
  EXPECT_EQ(std::count(route_->sent.begin(), route_->sent.end(), 2U), 2);
  EXPECT_EQ(route_->sent.size(), all_.size() + 1);
  EXPECT_EQ(rank_->totals(), totals);
}

TEST_F(RankSenderTest, AFrameWithoutAReadableHeaderIsLeftToTheSeal) {
  const Status status = Run([](const BucketHeader& header) {
    return header.bucket == 1 ? BucketAck{.bucket = kNoBucket, .verdict = BucketVerdict::kDamaged} : Good(header);
  });

  EXPECT_TRUE(status.ok());
  EXPECT_EQ(route_->sent, all_);
  EXPECT_TRUE(rank_->Run(std::vector<std::uint32_t>{1}, 1).ok());
}

TEST_F(RankSenderTest, AcknowledgementsOfWhatWasNotSentAreRefused) {
  const std::vector<BucketAck> bad = {{.bucket = 3},
                                      {.bucket = 0, .attempt = 1},
                                      {.bucket = 1'000'000},
                                      {.bucket = kNoBucket, .verdict = BucketVerdict::kGood}};
  for (const BucketAck& ack : bad) {
    EXPECT_EQ(Run([&](const BucketHeader&) { return ack; }, 1).reason(), "bad_ack") << ack.bucket;
  }
}

TEST_F(RankSenderTest, AVerdictThatDoesNotExistIsRefused) {
  const Status status = Run([](const BucketHeader& header) {
    return BucketAck{.bucket = header.bucket, .attempt = 0, .verdict = static_cast<BucketVerdict>(77)};
  });

  EXPECT_EQ(status.reason(), "bad_ack");
}

TEST_F(RankSenderTest, AFenceStopsTheSendingAtOnce) {
  const Status status = Run(
      [](const BucketHeader& header) {
        return BucketAck{.bucket = header.bucket, .attempt = 0, .verdict = BucketVerdict::kFenced};
      },
      /*credits=*/1);

  EXPECT_EQ(status.reason(), "fenced");
  EXPECT_THAT(route_->sent, ElementsAre(0));
}

TEST_F(RankSenderTest, CancellationStopsBeforeTheNextBucket) {
  const Status status = Run([&](const BucketHeader& header) {
    if (header.bucket == 1) stop_.request_stop();
    return Good(header);
  });

  EXPECT_EQ(status.reason(), "cancelled");
  EXPECT_THAT(route_->sent, ElementsAre(0, 1));
}

}  // namespace
}  // namespace bascule
