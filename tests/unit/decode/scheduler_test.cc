// Admission, order and accounting, with a model that is only imagined: the test answers every wish itself.
#include "engine_side/decode/scheduler.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>

namespace bascule {
namespace {

constexpr std::int64_t kPageTokens = 16;

struct Heard final : public GenerateSink {
  void OnPrompt(const PromptReport& report) override { prompt = report; }
  void OnToken(const GeneratedToken& token) override {
    EXPECT_FALSE(finish.has_value());
    tokens.push_back(token.id);
    all.push_back(token);
  }
  void OnFinish(FinishReason reason, const Status& why) override { finish = reason, status = why; }
  std::optional<PromptReport> prompt;
  std::vector<std::int32_t> tokens;
  std::vector<GeneratedToken> all;
  std::optional<FinishReason> finish;
  Status status;
};

// A version without weights.
class Named final : public StepWeights {
 public:
  explicit Named(WeightVersion version) : version_(std::move(version)) {}
  const WeightVersion& version() const override { return version_; }
  std::span<const std::byte> Tensor(int, int) const override { return {}; }

 private:
  const WeightVersion version_;
};

WeightVersion Version(std::uint64_t number) {
  return {.run = "run", .number = number, .digest = Sha256Of(std::to_string(number))};
}

class SchedulerTest : public testing::Test {
 protected:
  void Open(SchedulerLimits limits, std::int64_t pages = 64) {
    limits.kv_pages = pages;
    limits.page_tokens = kPageTokens;
    scheduler_ = std::make_unique<Scheduler>(limits);
  }
  void SetUp() override { Open(kLimits); }

  // A prompt of that many tokens, which begins like no other.
  GenerateRequest Asking(std::size_t prompt, std::int32_t max_new_tokens) {
    GenerateRequest request{.prompt = std::vector<std::int32_t>(prompt, 1), .max_new_tokens = max_new_tokens};
    if (prompt > 0) request.prompt[0] = prompts_++ % 100;
    return request;
  }
  std::shared_ptr<Heard> Submit(std::uint64_t id, const GenerateRequest& request) {
    auto heard = std::make_shared<Heard>();
    const Status status = scheduler_->Submit(id, request, heard, now_);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return heard;
  }
  std::string Refusal(const GenerateRequest& request) {
    return scheduler_->Submit(99, request, std::make_shared<Heard>(), now_).reason();
  }
  // One step in which every wish is answered with `token`; returns its rows.
  std::vector<StepRow> Step(std::int32_t token = 7) {
    std::vector<Delivery> deliveries;
    last_step_ = scheduler_->BeginStep(Live(), now_, deliveries);
    std::vector<std::optional<SampledToken>> sampled;
    std::vector<StepRow> rows;
    for (const Scheduler::Pass& pass : last_step_.passes) {
      rows.insert(rows.end(), pass.rows.begin(), pass.rows.end());
      for (const SampleWish& wish : pass.wishes) {
        sampled.push_back(SampledToken{wish.rule.given >= 0 ? wish.rule.given : token, -1.0f});
      }
    }
    if (inspect_) inspect_(rows);
    scheduler_->FinishStep(sampled, now_, deliveries);
    Hand(deliveries);
    return rows;
  }
  static void Hand(const std::vector<Delivery>& deliveries) {
    for (const Delivery& delivery : deliveries) delivery.Tell();
  }
  static std::vector<std::int64_t> Positions(const std::vector<StepRow>& rows) {
    std::vector<std::int64_t> positions;
    for (const StepRow& row : rows) positions.push_back(row.position);
    return positions;
  }

  static constexpr SchedulerLimits kLimits = {
      .vocabulary = 100, .max_positions = 128, .max_running = 4, .max_waiting = 5, .max_step_tokens = 8};
  std::shared_ptr<StepWeights> Live() const { return std::make_shared<Named>(version_); }

  WeightVersion version_ = Version(1);
  TimePoint now_;
  std::int32_t prompts_ = 0;
  Scheduler::Step last_step_;
  std::function<void(const std::vector<StepRow>&)> inspect_;  // while the rows' page tables hold
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
  EXPECT_FALSE(scheduler_->HasWork(now_));
  EXPECT_TRUE(scheduler_->Submit(1, Asking(100, 28), std::make_shared<Heard>(), now_).ok());
}

TEST_F(SchedulerTest, ARequestThatNeedsMorePagesThanThereAreIsTooLarge) {
  Open(kLimits, /*pages=*/2);

  EXPECT_EQ(Refusal(Asking(20, 14)), "request_too_large");  // 33 tokens of state
  EXPECT_TRUE(scheduler_->Submit(1, Asking(20, 13), std::make_shared<Heard>(), now_).ok());
}

TEST_F(SchedulerTest, BeyondMaxWaitingTheQueueIsFullUntilSomeRequestIsAdmitted) {
  for (std::uint64_t id = 1; id <= 5; ++id) Submit(id, Asking(1, 3));
  EXPECT_EQ(Refusal(Asking(1, 3)), "queue_full");
  EXPECT_EQ(scheduler_->waiting(), 5);

  Step();

  EXPECT_EQ(scheduler_->running(), 4);
  EXPECT_TRUE(scheduler_->Submit(6, Asking(1, 3), std::make_shared<Heard>(), now_).ok());
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
  EXPECT_EQ(scheduler_->pages_used(), 4);
  EXPECT_TRUE(small->tokens.empty());
  while (scheduler_->HasWork(now_)) Step();
  EXPECT_EQ(large->tokens.size(), 50u);
  EXPECT_EQ(small->finish, FinishReason::kLength);
  EXPECT_EQ(scheduler_->pages_used(), 0);
}

TEST_F(SchedulerTest, AStopTokenEndsTheRequestAfterItIsToldAndFreesItsPages) {
  GenerateRequest request = Asking(3, 50);
  request.stop = {20, 30};
  const auto heard = Submit(1, request);

  Step(10);
  EXPECT_GT(scheduler_->pages_used(), 0);
  Step(30);

  EXPECT_EQ(heard->tokens, (std::vector<std::int32_t>{10, 30}));
  EXPECT_EQ(heard->finish, FinishReason::kStop);
  EXPECT_TRUE(heard->status.ok());
  EXPECT_EQ(scheduler_->pages_used(), 0);
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
  const std::int64_t pages_before = scheduler_->pages_used();

  for (const std::uint64_t id : {1, 2, 5, 77}) scheduler_->Cancel(id);
  Step();

  for (const auto& [state, sink] : heard) {
    EXPECT_EQ(sink->finish, FinishReason::kCancelled) << state;
    EXPECT_EQ(sink->status.code(), StatusCode::kCancelled) << state;
  }
  EXPECT_EQ(scheduler_->running(), 2);
  EXPECT_LT(scheduler_->pages_used(), pages_before);
  scheduler_->Cancel(3);
  scheduler_->Cancel(4);
  Step();
  EXPECT_FALSE(scheduler_->HasWork(now_));
  EXPECT_EQ(scheduler_->pages_used(), 0);
}

TEST_F(SchedulerTest, ACancelledRequestEndsWhereverAFlipHasPutIt) {
  std::map<std::string, std::shared_ptr<Heard>> heard;
  GenerateRequest request = Asking(20, 50);
  heard["recomputed"] = Submit(1, request);
  heard["waits to be recomputed"] = Submit(2, request);  // for what the first makes
  GenerateRequest drains = Asking(4, 50);
  drains.kv_policy = KvPolicy::kDrain;
  heard["draining"] = Submit(3, drains);
  GenerateRequest parked = Asking(4, 50);
  parked.min_start_version = 9;
  heard["waits for a version"] = Submit(4, parked);
  while (heard["waits to be recomputed"]->tokens.empty()) Step();
  version_ = Version(2);
  scheduler_->Invalidate(version_);
  Step();
  ASSERT_EQ(scheduler_->running(), 2);
  ASSERT_EQ(scheduler_->waiting(), 2);
  ASSERT_EQ(last_step_.passes.size(), 2u);

  for (const std::uint64_t id : {1, 2, 3, 4}) scheduler_->Cancel(id);
  Step();

  for (const auto& [state, sink] : heard) EXPECT_EQ(sink->finish, FinishReason::kCancelled) << state;
  EXPECT_FALSE(scheduler_->HasWork(now_));
  EXPECT_EQ(scheduler_->pages_used(), 0);
  EXPECT_EQ(scheduler_->clients(), 0u);
}

TEST_F(SchedulerTest, ACancelDuringAStepDropsItsTokenAndEndsTheRequestBeforeTheNext) {
  const auto heard = Submit(1, Asking(4, 50));
  std::vector<Delivery> deliveries;
  const Scheduler::Step step = scheduler_->BeginStep(Live(), now_, deliveries);

  scheduler_->Cancel(1);
  scheduler_->FinishStep({SampledToken{5, -1.0f}}, now_, deliveries);
  Hand(deliveries);
  EXPECT_FALSE(heard->finish.has_value());
  EXPECT_TRUE(Step().empty());

  EXPECT_EQ(step.passes[0].wishes.size(), 1u);
  EXPECT_TRUE(heard->tokens.empty());
  EXPECT_EQ(heard->finish, FinishReason::kCancelled);
}

TEST_F(SchedulerTest, InvalidatingCountsRunningRequestsAndSendsTheirTokensThroughAgain) {
  const auto decoding = Submit(1, Asking(4, 50));
  for (int i = 0; i < 3; ++i) Step();  // state of the prompt and of two tokens
  const std::int64_t pages = scheduler_->pages_used();
  version_ = Version(2);

  const KvReport report = scheduler_->Invalidate(version_);

  EXPECT_EQ(report, (KvReport{.recomputed = 1, .recompute_tokens = 6, .prefix_entries_dropped = 1}));
  EXPECT_EQ(scheduler_->pages_used(), pages);  // freed outside of the critical section
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

  while (scheduler_->HasWork(now_)) ASSERT_LE(Step().size(), 2u);

  for (const auto& heard : all) EXPECT_EQ(heard->tokens.size(), 5u);
  EXPECT_EQ(scheduler_->tokens(), 100u);
  EXPECT_EQ(scheduler_->pages_used(), 0);
}

TEST_F(SchedulerTest, FinishingAllTellsEveryRequestAndReturnsAllPages) {
  std::vector<std::shared_ptr<Heard>> all;
  for (std::uint64_t id = 1; id <= 5; ++id) all.push_back(Submit(id, Asking(4, 5)));
  Step();
  std::vector<Delivery> deliveries;

  scheduler_->FinishAll(FinishReason::kCancelled, Status::Cancelled("engine_stopping"), deliveries);
  Hand(deliveries);

  for (const auto& heard : all) EXPECT_EQ(heard->status.reason(), "engine_stopping");
  EXPECT_FALSE(scheduler_->HasWork(now_));
  EXPECT_EQ(scheduler_->pages_used(), 0);
}

TEST_F(SchedulerTest, OfManySamplesOfOnePromptTheFirstPrefillsItAndTheOthersShareItsPages) {
  GenerateRequest request = Asking(37, 4);
  std::vector<std::shared_ptr<Heard>> samples;
  for (std::uint64_t id = 1; id <= 4; ++id) samples.push_back(Submit(id, request));

  std::size_t rows = 0;
  while (samples[0]->tokens.empty()) rows += Step().size();
  EXPECT_EQ(rows, 37u);
  EXPECT_EQ(scheduler_->running(), 1);
  const std::vector<StepRow> next = Step();

  EXPECT_EQ(Positions(next), (std::vector<std::int64_t>{37, 36, 36, 36}));  // one token each is theirs to compute
  EXPECT_EQ(last_step_.copies.size(), 3u);                                  // of the page that they write to
  EXPECT_EQ(scheduler_->pages_used(), 2 + 4);
  for (const auto& sample : samples) {
    EXPECT_EQ(sample->prompt->shared_tokens, sample == samples[0] ? 0 : 36);
  }
  while (scheduler_->HasWork(now_)) Step();
  EXPECT_EQ(scheduler_->pages_used(), 0);
  EXPECT_GT(scheduler_->prefix_entries(), 0);
}

TEST_F(SchedulerTest, NoRowEverWritesToAPageThatAnotherRequestReads) {
  Open({.vocabulary = 100, .max_positions = 128, .max_running = 4, .max_waiting = 100, .max_step_tokens = 8}, 16);
  for (std::uint64_t id = 1; id <= 40; ++id) {
    GenerateRequest request{.prompt = std::vector<std::int32_t>(1 + id * 7 % 50, 1),
                            .max_new_tokens = static_cast<std::int32_t>(1 + id % 30)};
    Submit(id, request);
  }

  inspect_ = [](const std::vector<StepRow>& rows) {
    std::map<std::int32_t, const std::int32_t*> writer;  // of a page, by the table it is in
    for (const StepRow& row : rows) {
      const std::int32_t page = row.pages[row.position / kPageTokens];
      EXPECT_EQ(writer.emplace(page, row.pages).first->second, row.pages) << "page " << page;
    }
    for (const StepRow& row : rows) {
      for (std::int64_t p = 0; p < row.position / kPageTokens; ++p) {
        const auto written = writer.find(row.pages[p]);
        EXPECT_TRUE(written == writer.end() || written->second == row.pages) << "page " << row.pages[p];
      }
    }
  };
  while (scheduler_->HasWork(now_)) Step(/*token=*/1);

  EXPECT_EQ(scheduler_->pages_used(), 0);
}

TEST_F(SchedulerTest, WhenTheRequestThatOthersWaitForIsCancelledOneOfThemTakesItsPlace) {
  GenerateRequest request = Asking(60, 4);
  const auto first = Submit(1, request);
  const auto second = Submit(2, request);
  Step();
  ASSERT_EQ(scheduler_->running(), 1);

  scheduler_->Cancel(1);
  while (scheduler_->HasWork(now_)) Step();

  EXPECT_TRUE(first->tokens.empty());
  EXPECT_EQ(second->tokens.size(), 4u);
}

TEST_F(SchedulerTest, SharedPagesThatNobodyUsesGiveWayToARequestThatNeedsThem) {
  Open(kLimits, /*pages=*/4);
  Submit(1, Asking(40, 8));
  while (scheduler_->HasWork(now_)) Step();
  ASSERT_EQ(scheduler_->prefix_entries(), 3);

  const auto large = Submit(2, Asking(40, 24));
  while (scheduler_->HasWork(now_)) Step();

  EXPECT_EQ(large->tokens.size(), 24u);
  EXPECT_EQ(scheduler_->pages_used(), 0);
}

TEST_F(SchedulerTest, SharedStateOfTheOldVersionIsNotUsedByTheNewOne) {
  GenerateRequest request = Asking(40, 4);
  Submit(1, request);
  while (scheduler_->HasWork(now_)) Step();
  const auto entries = static_cast<std::uint64_t>(scheduler_->prefix_entries());
  version_ = Version(2);

  EXPECT_EQ(scheduler_->Invalidate(version_).prefix_entries_dropped, entries);
  const auto again = Submit(2, request);
  while (scheduler_->HasWork(now_)) Step();

  EXPECT_EQ(again->prompt->shared_tokens, 0);
  EXPECT_EQ(again->tokens.size(), 4u);
}

// C-001.
TEST_F(SchedulerTest, SharedStateNeverCrossesVersionsAlsoWhenNobodyInvalidates) {
  GenerateRequest request = Asking(40, 30);
  const auto running = Submit(1, request);
  for (int i = 0; i < 10; ++i) Step();
  version_ = Version(2);

  const auto late = Submit(2, request);
  while (scheduler_->HasWork(now_)) Step();
  const auto later = Submit(3, request);
  while (scheduler_->HasWork(now_)) Step();

  EXPECT_EQ(running->all.back().kv_epoch, 2u);
  EXPECT_EQ(late->prompt->kv_epoch, 2u);
  EXPECT_EQ(later->prompt->shared_tokens, 39);  // of version 2
  EXPECT_EQ(later->prompt->kv_epoch, 2u);
}

TEST_F(SchedulerTest, EveryPolicyDoesWithARunningRequestWhatItSaysAndTheReportCountsIt) {
  std::map<KvPolicy, std::shared_ptr<Heard>> heard;
  std::uint64_t id = 0;
  for (const KvPolicy policy : {KvPolicy::kRecompute, KvPolicy::kDrain, KvPolicy::kKeep, KvPolicy::kAbort}) {
    GenerateRequest request = Asking(2, 8);
    request.kv_policy = policy;
    heard[policy] = Submit(++id, request);
  }
  for (int i = 0; i < 3; ++i) Step();
  version_ = Version(2);

  KvReport report = scheduler_->Invalidate(version_);
  while (scheduler_->HasWork(now_)) Step();

  report.prefix_entries_dropped = 0;
  EXPECT_EQ(report, (KvReport{.recomputed = 1, .drained = 1, .kept = 1, .aborted = 1, .recompute_tokens = 4}));
  const auto ends_as = [&](KvPolicy policy, FinishReason reason, std::size_t tokens) {
    EXPECT_EQ(heard[policy]->finish, reason) << KvPolicyName(policy);
    EXPECT_EQ(heard[policy]->tokens.size(), tokens) << KvPolicyName(policy);
  };
  ends_as(KvPolicy::kRecompute, FinishReason::kLength, 8);
  ends_as(KvPolicy::kDrain, FinishReason::kLength, 8);
  ends_as(KvPolicy::kKeep, FinishReason::kLength, 8);
  ends_as(KvPolicy::kAbort, FinishReason::kAbortedByFlip, 3);
  for (std::size_t i = 0; i < 8; ++i) {
    const std::uint64_t then = i < 3 ? 1 : 2;
    EXPECT_EQ(heard[KvPolicy::kRecompute]->all[i].version, then);
    EXPECT_EQ(heard[KvPolicy::kRecompute]->all[i].kv_epoch, then);
    EXPECT_EQ(heard[KvPolicy::kDrain]->all[i].version, 1u);
    EXPECT_EQ(heard[KvPolicy::kKeep]->all[i].version, then);
    EXPECT_EQ(heard[KvPolicy::kKeep]->all[i].kv_epoch, 1u);
  }
  EXPECT_EQ(scheduler_->pages_used(), 0);
}

// C-002.
TEST_F(SchedulerTest, AFlipAmongRequestsInEveryStateHappensWhateverTheirPolicyAndLeavesNoOldState) {
  const auto counted = [](const KvReport& report, KvPolicy policy) {
    const std::map<KvPolicy, std::uint64_t> counts = {{KvPolicy::kRecompute, report.recomputed},
                                                      {KvPolicy::kDrain, report.drained},
                                                      {KvPolicy::kKeep, report.kept},
                                                      {KvPolicy::kAbort, report.aborted}};
    return counts.at(policy);
  };
  for (const KvPolicy policy : {KvPolicy::kRecompute, KvPolicy::kDrain, KvPolicy::kKeep, KvPolicy::kAbort}) {
    Open({.vocabulary = 100, .max_positions = 128, .max_running = 9, .max_waiting = 20, .max_step_tokens = 32}, 128);
    version_ = Version(1);
    std::vector<std::shared_ptr<Heard>> heard;
    GenerateRequest long_prompt = Asking(100, 5);
    for (std::uint64_t id = 1; id <= 13; ++id) {  // eight decode, one is in its prompt, four wait
      GenerateRequest request = id == 9 ? long_prompt : Asking(3, 20);
      request.kv_policy = policy;
      heard.push_back(Submit(id, request));
    }
    Step();
    Step();
    ASSERT_EQ(scheduler_->running(), 9);
    ASSERT_EQ(scheduler_->waiting(), 4);
    version_ = Version(2);

    const KvReport report = scheduler_->Invalidate(version_);
    while (scheduler_->HasWork(now_)) Step();

    EXPECT_EQ(counted(report, policy), 9u) << KvPolicyName(policy);
    EXPECT_EQ(report.recomputed + report.drained + report.kept + report.aborted, 9u) << KvPolicyName(policy);
    for (std::size_t i = 9; i < 13; ++i) EXPECT_EQ(heard[i]->all.front().kv_epoch, 2u) << KvPolicyName(policy);
    const auto again = Submit(99, long_prompt);
    while (scheduler_->HasWork(now_)) Step();
    EXPECT_EQ(again->prompt->kv_epoch, 2u) << KvPolicyName(policy);
    EXPECT_EQ(scheduler_->pages_used(), 0) << KvPolicyName(policy);
  }
}

TEST_F(SchedulerTest, StateThatTwoVersionsMadeIsNotSharedNorIsThatOfADrainedRequest) {
  for (const KvPolicy policy : {KvPolicy::kKeep, KvPolicy::kDrain}) {
    Open(kLimits);
    version_ = Version(1);
    GenerateRequest request = Asking(20, 30);
    request.kv_policy = policy;
    Submit(1, request);
    for (int i = 0; i < 5; ++i) Step();
    version_ = Version(2);
    scheduler_->Invalidate(version_);
    while (scheduler_->HasWork(now_)) Step();

    EXPECT_EQ(scheduler_->prefix_entries(), 0) << KvPolicyName(policy);
    const auto again = Submit(2, request);
    while (scheduler_->HasWork(now_)) Step();
    EXPECT_EQ(again->prompt->shared_tokens, 0);
    EXPECT_EQ(again->all.back().kv_epoch, 2u);
  }
}

TEST_F(SchedulerTest, TwoVersionsDecodeInOneStepAndTheOldOneIsLeasedUntilItsRequestsEnd) {
  GenerateRequest request = Asking(2, 6);
  request.kv_policy = KvPolicy::kDrain;
  std::weak_ptr<StepWeights> leased;
  {
    const auto old = Live();
    leased = old;
    Submit(1, request);
    std::vector<Delivery> deliveries;
    scheduler_->BeginStep(old, now_, deliveries);
    scheduler_->FinishStep({SampledToken{5, -1.0f}}, now_, deliveries);
  }
  version_ = Version(2);
  scheduler_->Invalidate(version_);
  Submit(2, Asking(2, 20));

  Step();
  ASSERT_EQ(last_step_.passes.size(), 2u);
  EXPECT_EQ(last_step_.passes[0].weights->version(), Version(2));
  EXPECT_EQ(last_step_.passes[1].weights->version(), Version(1));
  while (scheduler_->running() == 2) Step();
  last_step_ = {};

  EXPECT_TRUE(leased.expired());
}

TEST_F(SchedulerTest, WhenDrainedRequestsHoldThePagesThoseOfTheNewVersionWaitAndAllEnd) {
  Open(kLimits, /*pages=*/4);
  GenerateRequest drains = Asking(17, 30);  // three pages
  drains.kv_policy = KvPolicy::kDrain;
  const auto old = Submit(1, drains);
  for (int i = 0; i < 5; ++i) Step();
  version_ = Version(2);
  scheduler_->Invalidate(version_);
  const auto small = Submit(2, Asking(2, 10));   // one page
  const auto large = Submit(3, Asking(17, 10));  // two
  Step();

  EXPECT_EQ(scheduler_->running(), 2);  // two versions, and no page left
  EXPECT_EQ(scheduler_->pages_used(), 4);
  EXPECT_EQ(scheduler_->waiting(), 1);
  while (!old->finish) Step();
  EXPECT_TRUE(large->tokens.empty());
  while (scheduler_->HasWork(now_)) Step();

  EXPECT_EQ(old->tokens.size(), 30u);
  EXPECT_EQ(old->all.back().version, 1u);
  for (const auto& heard : {small, large}) {
    EXPECT_EQ(heard->tokens.size(), 10u);
    EXPECT_EQ(heard->all.front().version, 2u);
  }
  EXPECT_EQ(scheduler_->pages_used(), 0);
}

TEST_F(SchedulerTest, ARequestThatBecameTooStaleEndsAtTheFlipWithWhatItHas) {
  GenerateRequest request = Asking(2, 50);
  request.max_staleness = 1;
  const auto heard = Submit(1, request);
  Step();

  version_ = Version(2);
  EXPECT_EQ(scheduler_->Invalidate(version_).recomputed, 1u);
  Step();
  version_ = Version(3);
  const KvReport report = scheduler_->Invalidate(version_);
  while (scheduler_->HasWork(now_)) Step();

  EXPECT_EQ(report.too_stale, 1u);
  EXPECT_EQ(heard->finish, FinishReason::kTooStale);
  EXPECT_EQ(heard->tokens.size(), 2u);
}

TEST_F(SchedulerTest, ARequestThatWaitsToBeRecomputedBecomesTooStaleThere) {
  GenerateRequest request = Asking(20, 14);
  const auto first = Submit(1, request);
  request.max_staleness = 1;
  const auto second = Submit(2, request);
  while (second->tokens.empty()) Step();
  version_ = Version(2);
  scheduler_->Invalidate(version_);
  Step();
  ASSERT_EQ(scheduler_->running(), 1);  // the second waits for what the first computes anew
  ASSERT_EQ(scheduler_->waiting(), 1);
  const std::size_t had = second->tokens.size();

  version_ = Version(3);
  const KvReport report = scheduler_->Invalidate(version_);
  while (scheduler_->HasWork(now_)) Step();

  EXPECT_EQ(report.too_stale, 1u);
  EXPECT_EQ(second->finish, FinishReason::kTooStale);
  EXPECT_EQ(second->tokens.size(), had);
  EXPECT_EQ(first->finish, FinishReason::kLength);
}

TEST_F(SchedulerTest, ARequestWaitsForItsVersionAndOthersOvertakeIt) {
  GenerateRequest request = Asking(2, 3);
  request.min_start_version = 2;
  const auto early = Submit(1, request);
  const auto other = Submit(2, Asking(2, 3));

  while (scheduler_->HasWork(now_)) Step();
  EXPECT_EQ(other->finish, FinishReason::kLength);
  EXPECT_EQ(scheduler_->waiting(), 1);
  version_ = Version(2);
  scheduler_->Invalidate(version_);
  while (scheduler_->HasWork(now_)) Step();

  EXPECT_EQ(early->finish, FinishReason::kLength);
  EXPECT_EQ(early->all[0].version, 2u);
}

TEST_F(SchedulerTest, ARequestWhoseTimeIsOverEndsWhereverItIs) {
  GenerateRequest request = Asking(2, 50);
  request.time_limit = std::chrono::seconds(1);
  const auto running = Submit(1, request);
  Step();
  request.min_start_version = 9;
  const auto waiting = Submit(2, request);
  Step();

  now_ += std::chrono::seconds(1);
  EXPECT_TRUE(scheduler_->HasWork(now_));
  Step();

  for (const auto& heard : {running, waiting}) {
    EXPECT_EQ(heard->finish, FinishReason::kCancelled);
    EXPECT_EQ(heard->status.reason(), "deadline");
  }
  EXPECT_FALSE(scheduler_->NextDeadline().has_value());
  EXPECT_EQ(scheduler_->pages_used(), 0);
}

TEST_F(SchedulerTest, AFloodOfOneClientDoesNotHoldUpAnother) {
  Open({.vocabulary = 100, .max_positions = 128, .max_running = 2, .max_waiting = 50, .max_step_tokens = 8});
  std::vector<std::shared_ptr<Heard>> flood;
  for (std::uint64_t id = 1; id <= 50; ++id) {
    GenerateRequest request = Asking(2, 10);
    request.client = "flood";
    flood.push_back(Submit(id, request));
  }
  Step();
  GenerateRequest request = Asking(2, 10);
  request.client = "other";

  const auto other = Submit(99, request);
  while (!other->finish) Step();

  EXPECT_EQ(other->finish, FinishReason::kLength);
  EXPECT_EQ(std::ranges::count_if(flood, [](const auto& heard) { return heard->finish.has_value(); }), 3);
  while (scheduler_->HasWork(now_)) Step();
  for (const auto& heard : flood) EXPECT_EQ(heard->tokens.size(), 10u);
  EXPECT_EQ(scheduler_->clients(), 0u);
}

TEST_F(SchedulerTest, AQueueThatOneClientHasFilledIsNotFullForAnother) {
  GenerateRequest request = Asking(2, 10);
  for (std::uint64_t id = 1; id <= 5; ++id) Submit(id, request);
  EXPECT_EQ(Refusal(request), "queue_full");

  request.client = "other";

  EXPECT_TRUE(scheduler_->Submit(6, request, std::make_shared<Heard>(), now_).ok());
}

TEST_F(SchedulerTest, AShortPromptDoesNotWaitForALongOneNorTheLongOneForShortOnes) {
  Open({.vocabulary = 100, .max_positions = 1024, .max_running = 4, .max_waiting = 100, .max_step_tokens = 8}, 128);
  const auto large = Submit(1, Asking(100, 1));
  Step();
  const auto small = Submit(2, Asking(4, 1));

  Step();
  EXPECT_EQ(small->tokens.size(), 1u);

  int steps = 2;
  for (std::uint64_t id = 3; !large->finish; ++steps) {
    Submit(id++, Asking(7, 1));  // there is always a shorter one
    Step();
  }
  EXPECT_LE(steps, 1 + (100 - 8 + 3) / 4);
}

TEST_F(SchedulerTest, WhileOneWaitsForStateThatIsAboutToBeSharedOtherClientsGoOn) {
  GenerateRequest request = Asking(60, 4);
  request.client = "samples";
  Submit(1, request);
  Submit(2, request);
  GenerateRequest other = Asking(60, 4);
  Submit(3, request);
  other.client = "other";
  Submit(4, other);

  Step();

  EXPECT_EQ(scheduler_->running(), 2);
  EXPECT_EQ(scheduler_->waiting(), 2);
}

TEST_F(SchedulerTest, TenThousandRequestsWaitAndNoMore) {
  Open({.vocabulary = 100,
        .max_positions = 128,
        .max_running = 8,
        .max_waiting = 10'000,
        .max_waiting_tokens = 40'000,
        .max_step_tokens = 64});
  std::vector<std::shared_ptr<Heard>> all;
  for (std::uint64_t id = 1; id <= 10'000; ++id) all.push_back(Submit(id, Asking(4, 2)));

  EXPECT_EQ(Refusal(Asking(4, 2)), "queue_full");
  while (scheduler_->HasWork(now_)) Step();

  for (const auto& heard : all) ASSERT_EQ(heard->finish, FinishReason::kLength);
  EXPECT_EQ(scheduler_->pages_used(), 0);
}

TEST_F(SchedulerTest, TheGapAcrossAFlipIsToldWithTheFirstTokenAfterIt) {
  const auto heard = Submit(1, Asking(2, 4));
  Step();
  version_ = Version(2);
  scheduler_->Invalidate(version_);
  now_ += std::chrono::milliseconds(7);
  while (scheduler_->HasWork(now_)) Step();

  EXPECT_EQ(heard->all[0].flip_gap, Duration::zero());
  EXPECT_EQ(heard->all[1].flip_gap, std::chrono::milliseconds(7));
  EXPECT_EQ(heard->all[2].flip_gap, Duration::zero());
}

TEST_F(SchedulerTest, PromptLogprobsScoreEveryPromptTokenButTheFirst) {
  Submit(1, Asking(20, 2));
  while (scheduler_->HasWork(now_)) Step();
  GenerateRequest request = Asking(20, 2);
  request.prompt_logprobs = true;
  const auto heard = Submit(2, request);

  while (scheduler_->HasWork(now_)) Step();

  EXPECT_EQ(heard->prompt->logprobs, std::vector<float>(19, -1.0f));
  EXPECT_EQ(heard->tokens.size(), 2u);
}

TEST_F(SchedulerTest, StopTokensAreBarredUntilTheMinimumIsReached) {
  GenerateRequest request = Asking(2, 4);
  request.stop = {9};
  request.min_new_tokens = 1;
  Submit(1, request);

  Step();
  EXPECT_EQ(last_step_.passes[0].wishes[0].rule.banned.size(), 1u);
  Step();
  EXPECT_TRUE(last_step_.passes[0].wishes[0].rule.banned.empty());
}

}  // namespace
}  // namespace bascule
