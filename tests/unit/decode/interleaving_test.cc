// A thousand requests of every kind from many threads while fifty versions go live: whatever the interleaving, each
// token is what its version and epoch say, and all memory comes back. The seed decides what is asked, the threads when.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "base/mutex.h"
#include "engine_side/decode/decode_engine.h"
#include "engine_side/flip_gate.h"
#include "engine_side/weight_slots.h"
#include "tests/unit/decode/rollout_replay.h"
#include "tests/unit/decode/tiny_model.h"

namespace bascule {
namespace {

constexpr std::size_t kClients = 8, kRequestsOfClient = 125, kOutstanding = 8;
constexpr std::uint64_t kVersions = 51;

Deadline Patience() { return Deadline::After(Clock::Real(), std::chrono::minutes(4)); }

ModelConfig VeryTiny() {
  ModelConfig config = TinyLlama();
  config.layers = 1;
  config.hidden = 32;
  config.head_size = 8;
  config.ffn = 32;
  config.vocabulary = 40;
  config.max_positions = 128;
  return config;
}

// How many requests have ended, for those who wait for it.
class Progress {
 public:
  void Ended() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ++ended_;
    changed_.NotifyAll();
  }
  std::size_t ended() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return ended_;
  }
  void Await(std::size_t ended) EXCLUDES(mu_) {
    const Deadline deadline = Patience();
    MutexLock lock(mu_);
    while (ended_ < ended) ASSERT_TRUE(Clock::Real().WaitUntil(changed_, mu_, deadline.point())) << ended_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::size_t ended_ GUARDED_BY(mu_) = 0;
};

// What is going live or is live: the first is never behind the second.
struct LiveBounds {
  std::atomic<std::uint64_t> begun{1}, done{1};
};

// Keeps what it hears, which is looked at once the request has ended.
class Listener final : public GenerateSink {
 public:
  struct Behaviour {
    std::optional<std::size_t> cancel_after, full_after;  // tokens
  };
  Listener(DecodeEngine& engine, const LiveBounds& live, Progress& all, Progress& of_client, Behaviour behaviour)
      : engine_(engine), live_(live), all_(all), of_client_(of_client), behaviour_(behaviour) {}

  void OnPrompt(const PromptReport& report) override { prompt = report; }
  void OnToken(const GeneratedToken& token) override {
    EXPECT_FALSE(finish.has_value());
    EXPECT_LE(token.version, live_.begun.load()) << "I9: the label is ahead";
    tokens.push_back(token);
    if (tokens.size() == behaviour_.cancel_after) engine_.Cancel(id.load());
  }
  void OnFinish(FinishReason reason, const Status& status) override {
    EXPECT_FALSE(finish.has_value());
    finish = reason;
    why = status;
    all_.Ended();
    of_client_.Ended();
  }
  bool Full() const override { return behaviour_.full_after && tokens.size() > *behaviour_.full_after; }

  std::atomic<std::uint64_t> id{0};
  std::optional<PromptReport> prompt;
  std::vector<GeneratedToken> tokens;
  std::optional<FinishReason> finish;
  Status why;

 private:
  DecodeEngine& engine_;
  const LiveBounds& live_;
  Progress& all_;
  Progress& of_client_;
  const Behaviour behaviour_;
};

struct Asked {
  GenerateRequest request;
  std::uint64_t live_before = 0;  // at least
  std::shared_ptr<Listener> heard;
};

class InterleavingTest : public testing::TestWithParam<std::tuple<int, unsigned>> {
 protected:
  InterleavingTest() {
    for (std::uint64_t number = 1; number <= kVersions; ++number) {
      FusedModel model =
          Fuse(config_, RandomWeights(config_, static_cast<std::uint32_t>(number)), DType::kBf16, ranks());
      if (number == 1) layout_ = model.layout;
      versions_[number] = std::make_unique<PlainWeights>(std::move(model), number);
    }
    slots_ = *WeightSlots::Create(layout_, 2, Clock::Real());
    DecodeOptions options;
    options.config = config_;
    options.tensors = versions_[1]->tensors();
    options.ranks = ranks();
    options.threads = 2;
    options.kv_pages = 24;
    options.max_running = 8;
    options.max_waiting = 16;
    options.max_step_tokens = 32;
    engine_ = *DecodeEngine::Create(options);
    gate_ = std::make_unique<FlipGate>(*slots_, *engine_, Clock::Real());
    GoLive(1);
    engine_->Start([this] { return slots_->AcquireLive(); });
  }
  ~InterleavingTest() override { engine_->Stop(); }

  static int ranks() { return std::get<0>(GetParam()); }
  static unsigned seed() { return std::get<1>(GetParam()); }

  void GoLive(std::uint64_t number) {
    const Result<int> slot = slots_->ReserveShadow(Patience());
    ASSERT_TRUE(slot.ok()) << slot.status().ToString();
    const PlainWeights& weights = *versions_[number];
    for (std::size_t rank = 0; rank < layout_.ranks.size(); ++rank) {
      for (std::size_t t = 0; t < layout_.ranks[rank].tensors.size(); ++t) {
        const auto bytes = weights.Tensor(static_cast<int>(rank), static_cast<int>(t));
        std::memcpy(slots_->ShadowTensor(*slot, static_cast<int>(rank), static_cast<int>(t)).data(), bytes.data(),
                    bytes.size());
      }
    }
    live_.begun.store(number);
    const auto report =
        gate_->Flip({.slot = *slot, .version = weights.version(), .held = {}}, 0, Patience(), [](const FlipReport&) {});
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    live_.done.store(number);
    reports_.push_back(report->kv);
  }

  GenerateRequest RandomRequest(std::mt19937& random, std::size_t client) const {
    const auto upto = [&](std::int32_t most) { return std::uniform_int_distribution<std::int32_t>(0, most)(random); };
    GenerateRequest request{.max_new_tokens = 1 + upto(23), .temperature = upto(1) == 0 ? 0.0F : 1.2F};
    request.kv_policy = static_cast<KvPolicy>(upto(3));
    // Beginnings are few, so that many are shared; `keep` has prompts that can be explained by trying.
    const std::int32_t beginning = upto(4), size = request.kv_policy == KvPolicy::kKeep ? 1 + upto(9) : 1 + upto(47);
    for (std::int32_t i = 0; i < size; ++i) request.prompt.push_back((beginning * 7 + i * (1 + beginning)) % 40);
    if (upto(2) == 0) request.prompt.back() = upto(39);
    request.seed = static_cast<std::uint64_t>(upto(3));
    request.sample = static_cast<std::uint32_t>(upto(3));
    request.top_logprobs = upto(7) == 0 ? 3 : 0;
    request.prompt_logprobs = upto(9) == 0;
    if (upto(5) == 0) request.stop = {upto(39), upto(39)};
    if (upto(5) == 0) request.min_new_tokens = upto(request.max_new_tokens);
    if (upto(5) == 0) request.top_k = 1 + upto(9);
    if (upto(5) == 0) request.top_p = 0.8F;
    if (upto(9) == 0) request.max_staleness = static_cast<std::uint64_t>(upto(1));
    if (upto(19) == 0) request.min_start_version = std::min(live_.done.load() + 1, kVersions);
    if (upto(9) == 0) request.time_limit = std::chrono::nanoseconds(1 + upto(20'000'000));
    if (upto(29) == 0) request.time_limit = std::chrono::nanoseconds(1);
    request.client = std::string(1, static_cast<char>('a' + client % 4));
    return request;
  }

  std::uint64_t SubmitWhenThereIsRoom(Asked& asked) {
    while (true) {
      const std::size_t ended = all_.ended();
      asked.live_before = live_.done.load();
      const Result<std::uint64_t> id = engine_->Submit(asked.request, asked.heard);
      if (id.ok()) return *id;
      EXPECT_EQ(id.status().reason(), "queue_full");
      all_.Await(ended + 1);
    }
  }

  void Ask(std::size_t client, std::vector<Asked>& asked) {
    std::mt19937 random(seed() * 1000 + static_cast<unsigned>(client));
    Progress ended;
    while (asked.size() < kRequestsOfClient) {
      if (asked.size() >= kOutstanding) ended.Await(asked.size() - kOutstanding + 1);
      Asked& next = asked.emplace_back(Asked{.request = RandomRequest(random, client)});
      Listener::Behaviour behaviour;
      if (random() % 8 == 0) behaviour.cancel_after = 1 + random() % 12;
      if (random() % 16 == 0) behaviour.full_after = random() % 12;
      const bool cancel_at_once = random() % 16 == 0;
      next.heard = std::make_shared<Listener>(*engine_, live_, all_, ended, behaviour);
      const std::uint64_t id = SubmitWhenThereIsRoom(next);
      next.heard->id.store(id);
      if (cancel_at_once) engine_->Cancel(id);
    }
    ended.Await(kRequestsOfClient);
  }

  const ModelConfig config_ = VeryTiny();
  RolloutReplay::Versions versions_;
  Layout layout_;
  std::unique_ptr<WeightSlots> slots_;
  std::unique_ptr<DecodeEngine> engine_;
  std::unique_ptr<FlipGate> gate_;
  LiveBounds live_;
  Progress all_;
  std::vector<KvReport> reports_;
};

// What the policy lets the tokens be.
void CheckSpans(const Asked& asked) {
  const std::vector<GeneratedToken>& tokens = asked.heard->tokens;
  const KvPolicy policy = *asked.request.kv_policy;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_GE(tokens[i].version, i == 0 ? asked.live_before : tokens[i - 1].version) << "I9: the label is behind";
    EXPECT_GE(tokens[i].version, asked.request.min_start_version);
    EXPECT_LE(tokens[i].kv_epoch, tokens[i].version);
    if (policy != KvPolicy::kKeep) {
      EXPECT_EQ(tokens[i].kv_epoch, tokens[i].version);
    }
    if (policy == KvPolicy::kDrain || policy == KvPolicy::kAbort) {
      EXPECT_EQ(tokens[i].version, tokens[0].version);
    }
  }
}

void CheckEnd(const Asked& asked) {
  const GenerateRequest& request = asked.request;
  const std::vector<GeneratedToken>& tokens = asked.heard->tokens;
  ASSERT_TRUE(asked.heard->finish.has_value());
  switch (*asked.heard->finish) {
    case FinishReason::kLength:
      EXPECT_EQ(std::ssize(tokens), request.max_new_tokens);
      break;
    case FinishReason::kStop:
      EXPECT_NE(std::ranges::find(request.stop, tokens.back().id), request.stop.end());
      EXPECT_GE(std::ssize(tokens), request.min_new_tokens);
      break;
    case FinishReason::kAbortedByFlip:
      EXPECT_EQ(request.kv_policy, KvPolicy::kAbort);
      break;
    case FinishReason::kTooStale:
      EXPECT_TRUE(request.max_staleness.has_value());
      break;
    case FinishReason::kCancelled:
      EXPECT_TRUE((std::set<std::string>{"cancelled", "deadline", "slow_reader"}.contains(asked.heard->why.reason())));
      break;
    case FinishReason::kFailed:
      ADD_FAILURE() << asked.heard->why.ToString();
  }
}

TEST_P(InterleavingTest, I2EveryTokenIsThatOfItsVersionWhateverHappensAroundIt) {
  SCOPED_TRACE(testing::Message() << "seed " << seed() << ", engine ranks " << ranks());
  std::vector<std::vector<Asked>> asked(kClients);
  std::vector<std::jthread> threads;
  for (std::size_t client = 0; client < kClients; ++client) {
    asked[client].reserve(kRequestsOfClient);
    threads.emplace_back([&, client] { Ask(client, asked[client]); });
  }
  threads.emplace_back([&] {
    for (std::uint64_t number = 2; number <= kVersions; ++number) {
      all_.Await((number - 2) * kClients * kRequestsOfClient / kVersions);
      GoLive(number);
    }
  });
  threads.clear();

  RolloutReplay replay(config_, versions_, ranks());
  std::map<std::string, std::size_t> ends;
  for (const std::vector<Asked>& of_client : asked) {
    ASSERT_EQ(of_client.size(), kRequestsOfClient);
    for (const Asked& one : of_client) {
      SCOPED_TRACE(testing::Message() << "request " << one.heard->id.load());
      CheckSpans(one);
      CheckEnd(one);
      EXPECT_EQ(replay.Difference(one.request, one.heard->prompt, one.heard->tokens), "");
      const bool cancelled = one.heard->finish == FinishReason::kCancelled;
      ++ends[cancelled ? one.heard->why.reason() : std::string(FinishName(*one.heard->finish))];
    }
  }

  KvReport sum;
  for (const KvReport& report : reports_) {
    sum.recomputed += report.recomputed;
    sum.drained += report.drained;
    sum.kept += report.kept;
    sum.aborted += report.aborted;
    sum.too_stale += report.too_stale;
  }
  EXPECT_EQ(sum.too_stale, ends["too_stale"]);
  EXPECT_EQ(sum.aborted, ends["too_stale"] + ends["aborted_by_flip"]);
  for (const std::uint64_t crossed : {sum.recomputed, sum.drained, sum.kept, sum.aborted}) EXPECT_GT(crossed, 0U);
  for (const char* end : {"length", "stop", "cancelled", "deadline", "slow_reader"}) EXPECT_GT(ends[end], 0U) << end;
  const DecodeStatus status = engine_->status();
  EXPECT_EQ(status.running + status.waiting, 0);
  EXPECT_EQ(status.kv_pages_used, 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, InterleavingTest, testing::Values(std::tuple(1, 1U), std::tuple(2, 2U)),
                         [](const auto& test) {
                           return fmt::format("Ranks{}Seed{}", std::get<0>(test.param), std::get<1>(test.param));
                         });

}  // namespace
}  // namespace bascule
