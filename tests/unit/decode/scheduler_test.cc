// Admission, order and accounting, with a model that is only imagined: the test answers every wish itself.
#include "engine_side/decode/scheduler.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

namespace bascule {
namespace {

constexpr std::int64_t kPageTokens = 16;

struct Heard final : public GenerateSink {
  void OnToken(const GeneratedToken& token) override { tokens.push_back(token.id); }
  void OnFinish(FinishReason reason, const Status& why) override { finish = reason, status = why; }
  std::vector<std::int32_t> tokens;
  std::optional<FinishReason> finish;
  Status status;
};

class SchedulerTest : public testing::Test {
 protected:
  void Open(SchedulerLimits limits, std::int64_t pages = 64) {
    cache_ = *KvCache::Create({.layers = 1, .kv_heads = 1, .head_size = 2, .page_tokens = kPageTokens}, pages);
    scheduler_ = std::make_unique<Scheduler>(limits, *cache_);
  }
  void SetUp() override { Open(kLimits); }

  static GenerateRequest Asking(std::size_t prompt, std::int32_t max_new_tokens) {
    return {.prompt = std::vector<std::int32_t>(prompt, 1),
            .max_new_tokens = max_new_tokens,
            .temperature = 0,
            .seed = 0,
            .stop = {}};
  }
  std::shared_ptr<Heard> Submit(std::uint64_t id, const GenerateRequest& request) {
    auto heard = std::make_shared<Heard>();
    const Status status = scheduler_->Submit(id, request, heard);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return heard;
  }
  std::string Refusal(const GenerateRequest& request) {
    return scheduler_->Submit(99, request, std::make_shared<Heard>()).reason();
  }
  // One step in which every wish is answered with `token`; returns its rows.
  std::vector<StepRow> Step(std::int32_t token = 7) {
    std::vector<Delivery> deliveries;
    const Scheduler::Step step = scheduler_->BeginStep(version_, deliveries);
    scheduler_->FinishStep(std::vector<std::optional<SampledToken>>(step.wishes.size(), SampledToken{token, -1.0f}),
                           deliveries);
    Hand(deliveries);
    return step.rows;
  }
  static void Hand(const std::vector<Delivery>& deliveries) {
    for (const Delivery& delivery : deliveries) {
      if (delivery.token) {
        delivery.sink->OnToken(*delivery.token);
      } else {
        delivery.sink->OnFinish(delivery.finish, delivery.why);
      }
    }
  }
  static std::vector<std::int64_t> Positions(const std::vector<StepRow>& rows) {
    std::vector<std::int64_t> positions;
    for (const StepRow& row : rows) positions.push_back(row.position);
    return positions;
  }

  static constexpr SchedulerLimits kLimits = {
      .vocabulary = 100, .max_positions = 128, .max_running = 4, .max_waiting = 5, .max_step_tokens = 8};
  WeightVersion version_{.run = "run", .number = 1, .digest = {}};
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, RequestsThatNoModelCouldServeAreRefusedByName) {
  EXPECT_EQ(Refusal(Asking(0, 1)), "bad_request");
  EXPECT_EQ(Refusal(Asking(1, 0)), "bad_request");
  EXPECT_EQ(Refusal(Asking(1, -1)), "bad_request");
  EXPECT_EQ(Refusal(Asking(100, 29)), "bad_request");
  EXPECT_EQ(Refusal(Asking(1, std::numeric_limits<std::int32_t>::max())), "bad_request");
  for (const std::int32_t token : {-1, 100}) {
    GenerateRequest request = Asking(3, 1);
    request.prompt[1] = token;
    EXPECT_EQ(Refusal(request), "bad_request");
  }
  for (const float temperature :
       {-1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    GenerateRequest request = Asking(3, 1);
    request.temperature = temperature;
    EXPECT_EQ(Refusal(request), "bad_request");
  }
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_TRUE(scheduler_->Submit(1, Asking(100, 28), std::make_shared<Heard>()).ok());
}

TEST_F(SchedulerTest, ARequestThatNeedsMorePagesThanThereAreIsTooLarge) {
  Open(kLimits, /*pages=*/2);

  EXPECT_EQ(Refusal(Asking(20, 14)), "request_too_large");  // 33 tokens of state
  EXPECT_TRUE(scheduler_->Submit(1, Asking(20, 13), std::make_shared<Heard>()).ok());
}

TEST_F(SchedulerTest, BeyondMaxWaitingTheQueueIsFullUntilSomeRequestIsAdmitted) {
  for (std::uint64_t id = 1; id <= 5; ++id) Submit(id, Asking(1, 3));
  EXPECT_EQ(Refusal(Asking(1, 3)), "queue_full");
  EXPECT_EQ(scheduler_->waiting(), 5);

  Step();

  EXPECT_EQ(scheduler_->running(), 4);
  EXPECT_TRUE(scheduler_->Submit(6, Asking(1, 3), std::make_shared<Heard>()).ok());
}

TEST_F(SchedulerTest, APromptGoesInChunksAndOnlyItsLastRowWantsLogits) {
  const auto heard = Submit(1, Asking(19, 2));

  EXPECT_EQ(Positions(Step()), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(Positions(Step()), (std::vector<std::int64_t>{8, 9, 10, 11, 12, 13, 14, 15}));
  const std::vector<StepRow> last = Step();

  EXPECT_EQ(Positions(last), (std::vector<std::int64_t>{16, 17, 18}));
  EXPECT_FALSE(last[1].wants_logits);
  EXPECT_TRUE(last[2].wants_logits);
  EXPECT_EQ(heard->tokens.size(), 1u);
}

TEST_F(SchedulerTest, RequestsThatDecodeGoBeforePromptsAndOlderBeforeYounger) {
  const auto first = Submit(1, Asking(8, 5));
  Step();
  Submit(2, Asking(30, 5));
  Submit(3, Asking(30, 5));

  const std::vector<StepRow> rows = Step();

  EXPECT_EQ(Positions(rows), (std::vector<std::int64_t>{8, 0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(rows[0].token, 7);
  EXPECT_EQ(first->tokens.size(), 2u);
}

TEST_F(SchedulerTest, ARequestWaitsUntilItsWorstCaseFitsAndNothingOvertakesIt) {
  Open(kLimits, /*pages=*/4);
  Submit(1, Asking(8, 25));                     // two pages
  const auto large = Submit(2, Asking(8, 50));  // four pages
  const auto small = Submit(3, Asking(1, 1));

  while (scheduler_->waiting() >= 2) Step();

  EXPECT_EQ(scheduler_->running(), 1);
  EXPECT_EQ(cache_->pages_used(), 4);
  EXPECT_TRUE(small->tokens.empty());
  while (scheduler_->HasWork()) Step();
  EXPECT_EQ(large->tokens.size(), 50u);
  EXPECT_EQ(small->finish, FinishReason::kLength);
  EXPECT_EQ(cache_->pages_used(), 0);
}

TEST_F(SchedulerTest, AStopTokenEndsTheRequestAfterItIsToldAndFreesItsPages) {
  GenerateRequest request = Asking(3, 50);
  request.stop = {20, 30};
  const auto heard = Submit(1, request);

  Step(10);
  EXPECT_GT(cache_->pages_used(), 0);
  Step(30);

  EXPECT_EQ(heard->tokens, (std::vector<std::int32_t>{10, 30}));
  EXPECT_EQ(heard->finish, FinishReason::kStop);
  EXPECT_TRUE(heard->status.ok());
  EXPECT_EQ(cache_->pages_used(), 0);
}

TEST_F(SchedulerTest, ACancelledRequestEndsInEveryStateAndReturnsItsPages) {
  std::map<std::string, std::shared_ptr<Heard>> heard;
  heard["decoding"] = Submit(1, Asking(4, 50));
  Step();
  heard["in prefill"] = Submit(2, Asking(40, 50));
  Step();
  Submit(3, Asking(40, 50));
  Submit(4, Asking(40, 50));
  Step();
  ASSERT_EQ(scheduler_->running(), 4);
  heard["waiting"] = Submit(5, Asking(4, 50));
  const std::int64_t pages_before = cache_->pages_used();

  for (const std::uint64_t id : {1, 2, 5, 77}) scheduler_->Cancel(id);
  Step();

  for (const auto& [state, sink] : heard) {
    EXPECT_EQ(sink->finish, FinishReason::kCancelled) << state;
    EXPECT_EQ(sink->status.code(), StatusCode::kCancelled) << state;
  }
  EXPECT_EQ(scheduler_->running(), 2);
  EXPECT_LT(cache_->pages_used(), pages_before);
  scheduler_->Cancel(3);
  scheduler_->Cancel(4);
  Step();
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_EQ(cache_->pages_used(), 0);
}

TEST_F(SchedulerTest, ACancelDuringAStepDropsItsTokenAndEndsTheRequestBeforeTheNext) {
  const auto heard = Submit(1, Asking(4, 50));
  std::vector<Delivery> deliveries;
  const Scheduler::Step step = scheduler_->BeginStep(version_, deliveries);

  scheduler_->Cancel(1);
  scheduler_->FinishStep({SampledToken{5, -1.0f}}, deliveries);
  Hand(deliveries);
  EXPECT_FALSE(heard->finish.has_value());
  EXPECT_TRUE(Step().empty());

  EXPECT_EQ(step.wishes.size(), 1u);
  EXPECT_TRUE(heard->tokens.empty());
  EXPECT_EQ(heard->finish, FinishReason::kCancelled);
}

TEST_F(SchedulerTest, InvalidatingCountsRunningRequestsAndSendsTheirTokensThroughAgain) {
  const auto decoding = Submit(1, Asking(4, 50));
  for (int i = 0; i < 3; ++i) Step();  // state of the prompt and of two tokens
  const std::int64_t pages = cache_->pages_used();
  version_.number = 2;

  const KvReport report = scheduler_->Invalidate(version_);

  EXPECT_EQ(report, (KvReport{.recomputed = 1, .drained = 0, .kept = 0, .aborted = 0, .recompute_tokens = 6}));
  EXPECT_EQ(cache_->pages_used(), pages);
  EXPECT_EQ(Positions(Step()), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(decoding->tokens.size(), 4u);
}

TEST_F(SchedulerTest, WaitingRequestsAreNotCountedByAnInvalidation) {
  for (std::uint64_t id = 1; id <= 4; ++id) Submit(id, Asking(2, 50));
  Step();
  Submit(5, Asking(2, 50));

  EXPECT_EQ(scheduler_->Invalidate(version_).recomputed, 4u);
}

TEST_F(SchedulerTest, MoreRequestsThanAStepHoldsAllEnd) {
  Open({.vocabulary = 100, .max_positions = 128, .max_running = 4, .max_waiting = 50, .max_step_tokens = 2}, 8);
  std::vector<std::shared_ptr<Heard>> all;
  for (std::uint64_t id = 1; id <= 20; ++id) all.push_back(Submit(id, Asking(id, 5)));

  while (scheduler_->HasWork()) ASSERT_LE(Step().size(), 2u);

  for (const auto& heard : all) EXPECT_EQ(heard->tokens.size(), 5u);
  EXPECT_EQ(scheduler_->tokens(), 100u);
  EXPECT_EQ(cache_->pages_used(), 0);
}

TEST_F(SchedulerTest, FinishingAllTellsEveryRequestAndReturnsAllPages) {
  std::vector<std::shared_ptr<Heard>> all;
  for (std::uint64_t id = 1; id <= 5; ++id) all.push_back(Submit(id, Asking(4, 5)));
  Step();
  std::vector<Delivery> deliveries;

  scheduler_->FinishAll(FinishReason::kCancelled, Status::Cancelled("engine_stopping"), deliveries);
  Hand(deliveries);

  for (const auto& heard : all) EXPECT_EQ(heard->status.reason(), "engine_stopping");
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_EQ(cache_->pages_used(), 0);
}

}  // namespace
}  // namespace bascule
