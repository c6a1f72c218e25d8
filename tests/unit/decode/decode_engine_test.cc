// The engine with its threads, on real weight slots: serving, flips at safe points, and every way to end.
#include "engine_side/decode/decode_engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <thread>

#include "engine_side/weight_slots.h"
#include "tests/support/watched_clock.h"
#include "tests/unit/decode/tiny_model.h"

namespace bascule {
namespace {

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(60)); }
Deadline AtOnce() { return Deadline::After(Clock::Real(), Duration::zero()); }

// Keeps what it hears. `on_token` runs on the scheduler thread, with the number of tokens so far.
class Collector final : public GenerateSink {
 public:
  explicit Collector(std::function<void(std::size_t)> on_token = nullptr) : on_token_(std::move(on_token)) {}
  void OnToken(const GeneratedToken& token) override {
    std::size_t count = 0;
    {
      MutexLock lock(mu_);
      EXPECT_FALSE(finish_.has_value());
      tokens_.push_back(token);
      count = tokens_.size();
    }
    if (on_token_) on_token_(count);
  }
  void OnFinish(FinishReason reason, const Status& why) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(finish_.has_value());
    finish_ = reason;
    why_ = why;
    changed_.NotifyAll();
  }
  FinishReason Wait() {
    MutexLock lock(mu_);
    const TimePoint until = Soon().point();
    while (!finish_) {
      if (!Clock::Real().WaitUntil(changed_, mu_, until)) {
        ADD_FAILURE() << "the request did not end";
        return FinishReason::kFailed;
      }
    }
    return *finish_;
  }
  std::vector<GeneratedToken> tokens() {
    MutexLock lock(mu_);
    return tokens_;
  }
  Status why() {
    MutexLock lock(mu_);
    return why_;
  }

 private:
  const std::function<void(std::size_t)> on_token_;
  Mutex mu_;
  CondVar changed_;
  std::vector<GeneratedToken> tokens_ GUARDED_BY(mu_);
  std::optional<FinishReason> finish_ GUARDED_BY(mu_);
  Status why_ GUARDED_BY(mu_);
};

GenerateRequest Asking(std::vector<std::int32_t> prompt, std::int32_t max_new_tokens) {
  return {.prompt = std::move(prompt), .max_new_tokens = max_new_tokens};
}

using Answer = std::vector<std::pair<std::int32_t, std::uint32_t>>;
Answer AnswerOf(const std::vector<GeneratedToken>& tokens) {
  Answer answer;
  for (const GeneratedToken& token : tokens) answer.emplace_back(token.id, std::bit_cast<std::uint32_t>(token.logprob));
  return answer;
}

void Fill(const FusedModel& model, WeightSlots& slots, int slot) {
  for (std::size_t rank = 0; rank < model.bytes.size(); ++rank) {
    for (std::size_t t = 0; t < model.bytes[rank].size(); ++t) {
      const std::span<std::byte> target = slots.ShadowTensor(slot, static_cast<int>(rank), static_cast<int>(t));
      std::memcpy(target.data(), model.bytes[rank][t].data(), target.size());
    }
  }
}

// An engine that knows one version only.
struct ColdEngine {
  ColdEngine(const ModelConfig& config, std::uint64_t number, int ranks) {
    const FusedModel model =
        Fuse(config, RandomWeights(config, static_cast<std::uint32_t>(number)), DType::kBf16, ranks);
    slots = *WeightSlots::Create(model.layout, 2, Clock::Real());
    const int slot = *slots->ReserveShadow(Soon());
    Fill(model, *slots, slot);
    slots->Flip(slot, {.run = "cold", .number = number, .digest = Sha256Of(std::to_string(number))});
    DecodeOptions options;
    options.config = config;
    options.tensors = model.tensors;
    options.dtype = DType::kBf16;
    options.ranks = ranks;
    options.threads = 1;
    options.kv_pages = 64;
    engine = *DecodeEngine::Create(options);
    engine->Start([this] { return slots->AcquireLive(); });
  }
  ~ColdEngine() { engine->Stop(); }
  Answer AnswerTo(const GenerateRequest& request) const {
    const auto sink = std::make_shared<Collector>();
    EXPECT_TRUE(engine->Submit(request, sink).ok());
    sink->Wait();
    return AnswerOf(sink->tokens());
  }
  std::unique_ptr<WeightSlots> slots;
  std::unique_ptr<DecodeEngine> engine;
};

// On one engine rank and on two.
class DecodeEngineTest : public testing::TestWithParam<int> {
 protected:
  static constexpr DType kDtype = DType::kBf16;

  DecodeEngineTest() {
    slots_ = *WeightSlots::Create(model_.layout, 2, Clock::Real());
    options_.config = config_;
    options_.tensors = model_.tensors;
    options_.dtype = kDtype;
    options_.ranks = GetParam();
    options_.kv_pages = 256;
    options_.clock = &clock_;
  }
  ~DecodeEngineTest() override { engine_.reset(); }

  void Open() {
    Result<std::unique_ptr<DecodeEngine>> engine = DecodeEngine::Create(options_);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
  }
  void OpenAndStart() {
    PutLive(1, Stage(1));
    Open();
    engine_->Start([this] { return slots_->AcquireLive(); });
  }
  // Weights that depend on `number` in a shadow slot.
  int Stage(std::uint64_t number) {
    const FusedModel model =
        Fuse(config_, RandomWeights(config_, static_cast<std::uint32_t>(number)), kDtype, GetParam());
    const Result<int> slot = slots_->ReserveShadow(Soon());
    EXPECT_TRUE(slot.ok());
    Fill(model, *slots_, *slot);
    return *slot;
  }
  WeightVersion PutLive(std::uint64_t number, int slot) {
    const WeightVersion version{.run = "test", .number = number, .digest = Sha256Of(std::to_string(number))};
    slots_->Flip(slot, version);
    return version;
  }
  std::shared_ptr<Collector> Submit(const GenerateRequest& request,
                                    std::function<void(std::size_t)> on_token = nullptr) {
    auto sink = std::make_shared<Collector>(std::move(on_token));
    const Result<std::uint64_t> id = engine_->Submit(request, sink);
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    last_id_ = id.ok() ? *id : 0;
    return sink;
  }
  // What an engine that knows only version `number` answers.
  Answer Cold(std::uint64_t number, const GenerateRequest& request) {
    return ColdEngine(config_, number, GetParam()).AnswerTo(request);
  }

  // Runs `critical` at a safe point that is sure to lie right after token `after` of a request: the token holds the
  // scheduler thread until the call is in.
  class FlipAfter {
   public:
    FlipAfter(DecodeEngine& engine, WatchedClock& clock, std::size_t after, std::function<void()> critical)
        : after_(after), clock_(clock), caller_([this, &engine, critical = std::move(critical)] {
            while (!go_.load()) std::this_thread::yield();
            result_ = engine.RunAtSafePoint(0, critical, Soon());
          }) {
      clock_.Watch(caller_.get_id());
    }
    ~FlipAfter() {
      if (caller_.joinable()) caller_.join();
    }
    void OnToken(std::size_t count) {
      if (count != after_) return;
      go_.store(true);
      while (!clock_.waiting()) std::this_thread::yield();
    }
    Result<SafePoint> Join() {
      caller_.join();
      return result_;
    }

   private:
    const std::size_t after_;
    WatchedClock& clock_;
    std::atomic<bool> go_{false};
    Result<SafePoint> result_ = Status::Internal("not_run");
    std::thread caller_;
  };

  const ModelConfig config_ = TinyLlama();
  const FusedModel model_ = Fuse(config_, RandomWeights(config_, 1), kDtype, GetParam());
  WatchedClock clock_;
  std::unique_ptr<WeightSlots> slots_;
  DecodeOptions options_;
  std::unique_ptr<DecodeEngine> engine_;
  std::uint64_t last_id_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Ranks, DecodeEngineTest, testing::Values(1, 2), testing::PrintToStringParamName());

TEST_P(DecodeEngineTest, RequestsFromManyThreadsAllGetTheAnswerOfAColdEngine) {
  OpenAndStart();
  const Answer want = Cold(1, Asking({3, 1, 4, 1, 5}, 30));
  std::vector<std::thread> clients;

  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&] {
      for (int i = 0; i < 4; ++i) {
        const auto sink = std::make_shared<Collector>();
        ASSERT_TRUE(engine_->Submit(Asking({3, 1, 4, 1, 5}, 30), sink).ok());
        EXPECT_EQ(sink->Wait(), FinishReason::kLength);
        EXPECT_EQ(AnswerOf(sink->tokens()), want);
      }
    });
  }
  for (std::thread& client : clients) client.join();

  const DecodeStatus status = engine_->status();
  EXPECT_EQ(status.tokens, 16u * 30u);
  EXPECT_EQ(status.running + status.waiting, 0);
  EXPECT_EQ(status.kv_pages_used, 0);
  EXPECT_EQ(status.kv_pages_total, 256);
}

TEST_P(DecodeEngineTest, AFlipInMidGenerationStartsANewSpanWhoseTokensAreThoseOfAColdEngine) {
  OpenAndStart();
  const GenerateRequest request = Asking({9, 8, 7, 6}, 60);
  const int slot = Stage(2);
  KvReport report;
  FlipAfter flip(*engine_, clock_, 10, [&] { report = engine_->InvalidateKv(PutLive(2, slot)); });

  const auto sink = Submit(request, [&](std::size_t count) { flip.OnToken(count); });
  EXPECT_EQ(sink->Wait(), FinishReason::kLength);
  const Result<SafePoint> point = flip.Join();

  ASSERT_TRUE(point.ok()) << point.status().ToString();
  EXPECT_EQ(point->next_step, 10u);
  EXPECT_GT(point->stall, Duration::zero());
  EXPECT_EQ(report, (KvReport{.recomputed = 1, .recompute_tokens = 13, .prefix_entries_dropped = 1}));  // its prompt
  const std::vector<GeneratedToken> tokens = sink->tokens();
  ASSERT_EQ(tokens.size(), 60u);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(tokens[i].version, i < 10 ? 1u : 2u) << i;
    EXPECT_EQ(tokens[i].kv_epoch, tokens[i].version) << i;
  }
  GenerateRequest continued = request;
  for (std::size_t i = 0; i < 10; ++i) continued.prompt.push_back(tokens[i].id);
  continued.max_new_tokens = 50;
  EXPECT_EQ(AnswerOf({tokens.begin() + 10, tokens.end()}), Cold(2, continued));
  EXPECT_EQ(engine_->status().kv_pages_used, 0);
}

TEST_P(DecodeEngineTest, ASafePointWaitsForItsStep) {
  OpenAndStart();
  std::uint64_t steps_at_critical = 0;
  std::atomic<bool> go{false};
  std::thread caller([&] {
    while (!go.load()) std::this_thread::yield();
    const Result<SafePoint> point = engine_->RunAtSafePoint(
        25, [&] { steps_at_critical = engine_->status().steps; }, Soon());
    EXPECT_TRUE(point.ok() && point->next_step == 25);
  });
  clock_.Watch(caller.get_id());

  const auto sink = Submit(Asking({1}, 100), [&](std::size_t count) {
    if (count != 3) return;
    go.store(true);
    while (!clock_.waiting()) std::this_thread::yield();
  });
  sink->Wait();
  caller.join();

  EXPECT_EQ(steps_at_critical, 25u);
}

TEST_P(DecodeEngineTest, BeforeStartAndWhileIdleASafePointComesAtOnceWithoutAStall) {
  PutLive(1, Stage(1));
  Open();
  int ran = 0;

  for (const bool started : {false, true}) {
    if (started) engine_->Start([this] { return slots_->AcquireLive(); });
    const Result<SafePoint> point = engine_->RunAtSafePoint(
        1000, [&] { ++ran; }, Soon());
    ASSERT_TRUE(point.ok()) << point.status().ToString();
    EXPECT_EQ(point->stall, Duration::zero());
    EXPECT_EQ(point->next_step, 0u);
  }

  EXPECT_EQ(ran, 2);
}

// C-010.
TEST_P(DecodeEngineTest, ASafePointThatDoesNotComeInTimeIsNeverTaken) {
  OpenAndStart();
  std::atomic<bool> release{false};
  std::atomic<bool> held{false};
  const auto sink = Submit(Asking({1}, 3), [&](std::size_t count) {
    if (count != 1) return;
    held.store(true);
    while (!release.load()) std::this_thread::yield();
  });
  while (!held.load()) std::this_thread::yield();
  bool ran = false;

  const Status status = engine_
                            ->RunAtSafePoint(
                                0, [&] { ran = true; }, AtOnce())
                            .status();
  release.store(true);
  sink->Wait();

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.reason(), "deadline");
  EXPECT_TRUE(engine_
                  ->RunAtSafePoint(
                      0, [] {}, Soon())
                  .ok());
  EXPECT_FALSE(ran);
}

TEST_P(DecodeEngineTest, NoStepBeginsWhileACriticalSectionRuns) {
  OpenAndStart();
  std::shared_ptr<Collector> sink;

  const Result<SafePoint> point = engine_->RunAtSafePoint(
      0,
      [&] {
        sink = Submit(Asking({1, 2}, 4));  // taken in, but not begun
        EXPECT_EQ(engine_->status().steps, 0u);
        EXPECT_EQ(engine_->status().waiting, 1);
      },
      Soon());

  EXPECT_TRUE(point.ok());
  EXPECT_EQ(sink->Wait(), FinishReason::kLength);
}

// C-011.
TEST_P(DecodeEngineTest, WithoutALiveVersionRequestsAreRefused) {
  Open();
  EXPECT_EQ(engine_->Submit(Asking({1}, 1), std::make_shared<Collector>()).status().reason(), "nothing_live");

  engine_->Start([this] { return slots_->AcquireLive(); });

  EXPECT_EQ(engine_->Submit(Asking({1}, 1), std::make_shared<Collector>()).status().reason(), "nothing_live");
  PutLive(1, Stage(1));
  EXPECT_EQ(Submit(Asking({1}, 1))->Wait(), FinishReason::kLength);
}

TEST_P(DecodeEngineTest, AFullQueueRefusesWithoutHarmToWhatIsQueued) {
  options_.max_running = 1;
  options_.max_waiting = 2;
  OpenAndStart();
  std::atomic<bool> release{false};
  std::atomic<bool> held{false};
  std::vector<std::shared_ptr<Collector>> sinks;
  sinks.push_back(Submit(Asking({1}, 2), [&](std::size_t) {
    held.store(true);
    while (!release.load()) std::this_thread::yield();
  }));
  while (!held.load()) std::this_thread::yield();
  sinks.push_back(Submit(Asking({2}, 2)));
  sinks.push_back(Submit(Asking({3}, 2)));

  EXPECT_EQ(engine_->Submit(Asking({4}, 2), std::make_shared<Collector>()).status().reason(), "queue_full");
  release.store(true);

  for (const auto& sink : sinks) EXPECT_EQ(sink->Wait(), FinishReason::kLength);
}

TEST_P(DecodeEngineTest, ACancelledRequestEndsAndItsNeighbourGoesOn) {
  OpenAndStart();
  std::atomic<std::uint64_t> victim{0};
  const auto cancelled = std::make_shared<Collector>([&](std::size_t count) {
    if (count != 5) return;
    while (victim.load() == 0) std::this_thread::yield();
    engine_->Cancel(victim.load());
  });
  const Result<std::uint64_t> id = engine_->Submit(Asking({1}, 500), cancelled);
  const auto neighbour = Submit(Asking({1}, 40));
  victim.store(*id);

  EXPECT_EQ(cancelled->Wait(), FinishReason::kCancelled);
  EXPECT_EQ(neighbour->Wait(), FinishReason::kLength);

  EXPECT_EQ(cancelled->tokens().size(), 5u);
  EXPECT_EQ(engine_->status().kv_pages_used, 0);
  engine_->Cancel(12345);  // unknown: ignored
}

TEST_P(DecodeEngineTest, StoppingEndsEveryRequestAndEveryWaitForASafePoint) {
  options_.max_running = 1;
  OpenAndStart();
  std::atomic<bool> stopping{false};
  std::atomic<bool> go{false};
  std::thread caller([&] {
    while (!go.load()) std::this_thread::yield();
    const Status status = engine_
                              ->RunAtSafePoint(
                                  1'000'000, [] {}, Soon())
                              .status();
    EXPECT_EQ(status.reason(), "engine_stopping");
  });
  clock_.Watch(caller.get_id());
  const auto running = Submit(Asking({1}, 500), [&](std::size_t count) {
    if (count != 2) return;
    go.store(true);
    while (!clock_.waiting()) std::this_thread::yield();
    while (!stopping.load()) std::this_thread::yield();
  });
  const auto waiting = Submit(Asking({1}, 500));
  while (!clock_.waiting()) std::this_thread::yield();

  stopping.store(true);
  engine_->Stop();
  caller.join();

  for (const auto& sink : {running, waiting}) {
    EXPECT_EQ(sink->Wait(), FinishReason::kCancelled);
    EXPECT_EQ(sink->why().reason(), "engine_stopping");
  }
  EXPECT_EQ(engine_->Submit(Asking({1}, 1), std::make_shared<Collector>()).status().reason(), "engine_stopping");
  EXPECT_EQ(engine_
                ->RunAtSafePoint(
                    0, [] {}, Soon())
                .status()
                .reason(),
            "engine_stopping");
  EXPECT_EQ(engine_->status().kv_pages_used, 0);
}

TEST_P(DecodeEngineTest, NoStepHoldsALeaseWhenNothingRuns) {
  OpenAndStart();
  Submit(Asking({1}, 5))->Wait();
  PutLive(2, Stage(2));

  // The first version's slot is the kept one: it can be taken only when no lease is left on it.
  EXPECT_TRUE(slots_->ReserveShadow(Soon()).ok());
}

TEST_P(DecodeEngineTest, ADrainedRequestHoldsTheOldSlotUntilItEndsAndASessionIsToldSo) {
  OpenAndStart();
  GenerateRequest request = Asking({5, 6}, 40);
  request.kv_policy = KvPolicy::kDrain;
  const int slot = Stage(2);
  KvReport report;
  FlipAfter flip(*engine_, clock_, 10, [&] { report = engine_->InvalidateKv(PutLive(2, slot)); });
  std::atomic<bool> held{false}, release{false};

  const auto sink = Submit(request, [&](std::size_t count) {
    flip.OnToken(count);
    if (count != 20) return;
    held.store(true);
    while (!release.load()) std::this_thread::yield();
  });
  while (!held.load()) std::this_thread::yield();
  const Result<int> early = slots_->ReserveShadow(AtOnce());
  release.store(true);
  const Result<int> late = slots_->ReserveShadow(Soon());

  EXPECT_EQ(early.status().reason(), "shadow_leased");
  EXPECT_TRUE(late.ok()) << late.status().ToString();
  EXPECT_EQ(sink->Wait(), FinishReason::kLength);
  EXPECT_TRUE(flip.Join().ok());
  EXPECT_EQ(report.drained, 1u);
  EXPECT_EQ(AnswerOf(sink->tokens()), Cold(1, request));
}

TEST_P(DecodeEngineTest, FlipsUnderLoadLeaveEveryTokenWithOneVersionAndItsOwnEpoch) {
  OpenAndStart();
  std::vector<std::shared_ptr<Collector>> sinks;
  for (std::int32_t i = 0; i < 8; ++i) sinks.push_back(Submit(Asking({i, i + 1}, 120)));

  for (std::uint64_t number = 2; number <= 6; ++number) {
    const int slot = Stage(number);
    ASSERT_TRUE(engine_
                    ->RunAtSafePoint(
                        0, [&] { engine_->InvalidateKv(PutLive(number, slot)); }, Soon())
                    .ok());
  }

  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->Wait(), FinishReason::kLength);
    std::uint64_t last = 1;
    for (const GeneratedToken& token : sink->tokens()) {
      EXPECT_EQ(token.kv_epoch, token.version);
      EXPECT_GE(token.version, last);
      last = token.version;
    }
  }
  EXPECT_EQ(engine_->status().kv_pages_used, 0);
}

TEST_P(DecodeEngineTest, OptionsThatCannotWorkAreRefused) {
  const auto refusal = [&](const std::function<void(DecodeOptions&)>& change) {
    DecodeOptions options = options_;
    change(options);
    return DecodeEngine::Create(options).status().reason();
  };

  EXPECT_EQ(refusal([](DecodeOptions& o) { o.threads = 0; }), "bad_options");
  EXPECT_EQ(refusal([](DecodeOptions& o) { o.page_tokens = 10; }), "bad_options");
  EXPECT_EQ(refusal([](DecodeOptions& o) { o.max_running = 0; }), "bad_options");
  EXPECT_EQ(refusal([](DecodeOptions& o) { o.max_step_tokens = 0; }), "bad_options");
  EXPECT_EQ(refusal([](DecodeOptions& o) { o.max_waiting = 0; }), "bad_options");  // all go through the queue
  EXPECT_EQ(refusal([](DecodeOptions& o) { o.max_waiting_tokens = 0; }), "bad_options");
  EXPECT_EQ(refusal([](DecodeOptions& o) { o.dtype = DType::kF16; }), "bad_options");
  EXPECT_EQ(refusal([](DecodeOptions& o) { o.config.kv_heads = 3; }), "bad_options");
  EXPECT_EQ(refusal([](DecodeOptions& o) { o.ranks = 0; }), "bad_options");
  EXPECT_EQ(refusal([](DecodeOptions& o) { o.ranks = 3; }), "bad_options");  // four query heads
  EXPECT_EQ(refusal([](DecodeOptions& o) { o.tensors.layers.pop_back(); }), "bad_options");
  EXPECT_EQ(refusal([](DecodeOptions& o) { o.kv_pages = std::int64_t{1} << 40; }), "kv_memory");
}

TEST(FinishNameTest, NamesAreThoseOfTheProgram) {
  EXPECT_EQ(FinishName(FinishReason::kLength), "length");
  EXPECT_EQ(FinishName(FinishReason::kStop), "stop");
  EXPECT_EQ(FinishName(FinishReason::kCancelled), "cancelled");
  EXPECT_EQ(FinishName(FinishReason::kFailed), "failed");
}

}  // namespace
}  // namespace bascule
