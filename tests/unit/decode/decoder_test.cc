// Decoder and scheduler together, step by step and without threads of their own: right, and exact to the bit.
#include "engine_side/decode/host_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "engine_side/decode/scheduler.h"
#include "tests/unit/decode/reference_decoder.h"
#include "tests/unit/decode/tiny_model.h"

namespace bascule {
namespace {

class Collector final : public GenerateSink {
 public:
  void OnToken(const GeneratedToken& token) override { tokens.push_back(token); }
  void OnFinish(FinishReason reason, const Status& why) override { finish = reason, status = why; }
  void OnPrompt(const PromptReport& report) override { prompt = report; }
  PromptReport prompt;
  std::vector<GeneratedToken> tokens;
  std::optional<FinishReason> finish;
  Status status;
};

struct Shape {
  int threads = 1;
  std::int64_t max_step_tokens = 256;
  std::int64_t page_tokens = 16;
  std::int64_t max_running = 64;
  int ranks = 1;
};

// A scheduler and a decoder that a test steps by hand.
class Bench {
 public:
  Bench(const ModelConfig& config, const EngineTensors& tensors, WeightType type, const Shape& shape = {})
      : rank_shape_(*RankShapeOf(config, tensors, shape.ranks)),
        cache_(*KvCache::Create({config.layers, rank_shape_.kv_heads, config.head_size, shape.page_tokens, shape.ranks},
                                1024)),
        decoder_(*HostDecoder::Create({.config = config,
                                       .tensors = tensors,
                                       .shape = rank_shape_,
                                       .weight_type = type,
                                       .threads = shape.threads,
                                       .max_rows = shape.max_step_tokens,
                                       .max_logits = std::min(shape.max_step_tokens, shape.max_running)},
                                      *cache_)),
        scheduler_({.vocabulary = config.vocabulary,
                    .max_positions = config.max_positions,
                    .max_running = shape.max_running,
                    .max_waiting = 1000,
                    .max_step_tokens = shape.max_step_tokens,
                    .kv_pages = cache_->pages(),
                    .page_tokens = shape.page_tokens}) {}

  std::shared_ptr<Collector> Submit(const GenerateRequest& request) {
    auto sink = std::make_shared<Collector>();
    EXPECT_TRUE(scheduler_.Submit(++last_id_, request, sink, {}).ok());
    return sink;
  }
  void Step(const StepWeights& weights) {
    std::vector<Delivery> deliveries;
    const std::shared_ptr<StepWeights> borrowed(const_cast<StepWeights*>(&weights), [](StepWeights*) {});
    const Scheduler::Step step = scheduler_.BeginStep(borrowed, {}, deliveries);
    for (const PageCopy& copy : step.copies) cache_->CopyPage(copy.from, copy.to);
    std::vector<std::optional<SampledToken>> sampled;
    for (const Scheduler::Pass& pass : step.passes) {
      if (pass.rows.empty()) continue;
      decoder_->Forward(pass.rows, *pass.weights);
      for (auto& token : decoder_->Sample(pass.wishes)) sampled.push_back(std::move(token));
    }
    scheduler_.FinishStep(sampled, {}, deliveries);
    for (const Delivery& delivery : deliveries) delivery.Tell();
  }
  void RunToEnd(const StepWeights& weights) {
    while (scheduler_.HasWork({})) Step(weights);
  }
  Scheduler& scheduler() { return scheduler_; }

 private:
  template <typename T>
  using Owned = std::unique_ptr<T>;
  const RankShape rank_shape_;
  Owned<KvCache> cache_;
  Owned<HostDecoder> decoder_;
  Scheduler scheduler_;
  std::uint64_t last_id_ = 0;
};

std::vector<std::int32_t> RandomPrompt(const ModelConfig& config, std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<std::int32_t> token(0, static_cast<std::int32_t>(config.vocabulary) - 1);
  std::vector<std::int32_t> prompt(size);
  for (std::int32_t& t : prompt) t = token(random);
  return prompt;
}

// Eight requests of different lengths; every other one samples.
std::vector<GenerateRequest> EightRequests(const ModelConfig& config) {
  std::vector<GenerateRequest> requests;
  for (std::uint32_t i = 0; i < 8; ++i) {
    requests.push_back({.prompt = RandomPrompt(config, 1 + 7 * i, i),
                        .max_new_tokens = static_cast<std::int32_t>(40 - 3 * i),
                        .temperature = i % 2 == 0 ? 0.0f : 0.9f,
                        .seed = i,
                        .stop = {}});
  }
  return requests;
}

// Ids and the bits of the log-probabilities.
using Answer = std::vector<std::pair<std::int32_t, std::uint32_t>>;
Answer AnswerOf(const std::vector<GeneratedToken>& tokens) {
  Answer answer;
  for (const GeneratedToken& token : tokens) answer.emplace_back(token.id, std::bit_cast<std::uint32_t>(token.logprob));
  return answer;
}

struct ModelCase {
  const char* name;
  ModelConfig config;
  DType dtype;
  int ranks = 1;
};

class DecoderTest : public testing::TestWithParam<ModelCase> {
 protected:
  const ModelConfig config_ = GetParam().config;
  const WeightType type_ = GetParam().dtype == DType::kBf16 ? WeightType::kBf16 : WeightType::kF32;
  const LogicalWeights logical_ = RandomWeights(config_, 1);
  const PlainWeights weights_{Fuse(config_, logical_, GetParam().dtype, GetParam().ranks), 1};
  const PlainWeights next_weights_{Fuse(config_, RandomWeights(config_, 2), GetParam().dtype, GetParam().ranks), 2};

  Bench NewBench(Shape shape = {}) const {
    shape.ranks = GetParam().ranks;
    return Bench(config_, weights_.tensors(), type_, shape);
  }
  Answer Alone(const GenerateRequest& request, const StepWeights& weights) const {
    Bench bench = NewBench();
    const auto sink = bench.Submit(request);
    bench.RunToEnd(weights);
    return AnswerOf(sink->tokens);
  }
};

INSTANTIATE_TEST_SUITE_P(Models, DecoderTest,
                         testing::Values(ModelCase{"LlamaBf16", TinyLlama(), DType::kBf16},
                                         ModelCase{"LlamaF32", TinyLlama(), DType::kF32},
                                         ModelCase{"Qwen3Bf16", TinyQwen3(), DType::kBf16},
                                         ModelCase{"Qwen2Bf16", TinyQwen2(), DType::kBf16},
                                         ModelCase{"AllBiasesF32OnTwoRanks", AllBiases(), DType::kF32, 2},
                                         ModelCase{"Qwen2Bf16OnFourRanks", TinyQwen2(), DType::kBf16, 4},
                                         ModelCase{"LlamaBf16OnTwoRanks", TinyLlama(), DType::kBf16, 2},
                                         ModelCase{"LlamaF32OnFourRanks", TinyLlama(), DType::kF32, 4},
                                         ModelCase{"Qwen3Bf16OnTwoRanks", TinyQwen3(), DType::kBf16, 2},
                                         ModelCase{"OneKvHeadOnEightRanks", OneKvHead(), DType::kBf16, 8},
                                         ModelCase{"ThreeKvHeadsOnThreeRanks", ThreeKvHeads(), DType::kBf16, 3},
                                         ModelCase{"ThreeKvHeadsOnSixRanks", ThreeKvHeads(), DType::kBf16, 6}),
                         [](const auto& test) { return test.param.name; });

TEST_P(DecoderTest, GreedyTokensAndLogprobsAreThoseOfTheDoublePrecisionReference) {
  std::vector<std::int32_t> tokens = RandomPrompt(config_, 23, 5);
  Bench bench = NewBench();
  const auto sink = bench.Submit({.prompt = tokens, .max_new_tokens = 12, .temperature = 0, .seed = 0, .stop = {}});

  bench.RunToEnd(weights_);

  ASSERT_EQ(sink->tokens.size(), 12u);
  for (const GeneratedToken& token : sink->tokens) {
    const std::vector<double> logprobs = ReferenceLogprobs(config_, logical_, tokens);
    const auto best = std::max_element(logprobs.begin(), logprobs.end());
    const auto id = static_cast<std::size_t>(token.id);
    EXPECT_NEAR(token.logprob, logprobs[id], 1e-4);
    EXPECT_GE(logprobs[id], *best - 1e-4);  // where two are as close as that, either is greedy
    tokens.push_back(token.id);
  }
}

TEST_P(DecoderTest, ARequestGivesTheSameBitsAloneAndInABatchOfEight) {
  const std::vector<GenerateRequest> requests = EightRequests(config_);
  Bench bench = NewBench();
  std::vector<std::shared_ptr<Collector>> sinks;
  for (const GenerateRequest& request : requests) sinks.push_back(bench.Submit(request));

  bench.RunToEnd(weights_);

  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(sinks[i]->finish, FinishReason::kLength);
    EXPECT_EQ(AnswerOf(sinks[i]->tokens), Alone(requests[i], weights_)) << "request " << i;
  }
}

TEST_P(DecoderTest, ChunksThreadsPagesAndConcurrencyChangeNoBit) {
  const std::vector<GenerateRequest> requests = EightRequests(config_);
  const std::vector<Shape> shapes = {{.threads = 1, .max_step_tokens = 1},
                                     {.threads = 2, .max_step_tokens = 7},
                                     {.threads = 3, .max_step_tokens = 256, .page_tokens = 48},
                                     {.threads = 2, .max_step_tokens = 33, .max_running = 3}};
  for (const Shape& shape : shapes) {
    Bench bench = NewBench(shape);
    std::vector<std::shared_ptr<Collector>> sinks;
    for (const GenerateRequest& request : requests) sinks.push_back(bench.Submit(request));

    bench.RunToEnd(weights_);

    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(AnswerOf(sinks[i]->tokens), Alone(requests[i], weights_))
          << "request " << i << " max_step_tokens=" << shape.max_step_tokens;
    }
    EXPECT_EQ(bench.scheduler().pages_used(), 0);
  }
}

TEST_P(DecoderTest, ASharedBeginningChangesNoBit) {
  Bench bench = NewBench({.max_step_tokens = 40});
  const std::vector<std::int32_t> beginning = RandomPrompt(config_, 50, 7);
  std::vector<GenerateRequest> requests;
  for (std::uint32_t i = 0; i < 6; ++i) {  // some equal, some with a tail of their own, some a part of others
    GenerateRequest request{.prompt = beginning, .max_new_tokens = 20, .temperature = 0.8f, .seed = i};
    if (i % 3 == 1) request.prompt.push_back(static_cast<std::int32_t>(i));
    if (i % 3 == 2) request.prompt.resize(32);
    requests.push_back(request);
  }

  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<Collector>> sinks;
    for (const GenerateRequest& request : requests) sinks.push_back(bench.Submit(request));
    bench.RunToEnd(weights_);

    for (std::size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(AnswerOf(sinks[i]->tokens), Alone(requests[i], weights_)) << "request " << i << " round " << round;
      const std::int64_t shared = sinks[i]->prompt.shared_tokens;
      EXPECT_TRUE(round == 0 || shared == std::ssize(requests[i].prompt) - 1) << shared;
    }
  }
}

TEST_P(DecoderTest, ARecomputeInMidGenerationChangesNoBit) {
  const std::vector<GenerateRequest> requests = EightRequests(config_);
  Bench bench = NewBench({.max_step_tokens = 40});
  std::vector<std::shared_ptr<Collector>> sinks;
  for (const GenerateRequest& request : requests) sinks.push_back(bench.Submit(request));
  for (int step = 0; step < 13; ++step) bench.Step(weights_);

  const KvReport report = bench.scheduler().Invalidate(weights_.version());
  bench.RunToEnd(weights_);

  EXPECT_EQ(report.recomputed, 8u);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(AnswerOf(sinks[i]->tokens), Alone(requests[i], weights_)) << "request " << i;
  }
}

TEST_P(DecoderTest, TokensAfterAFlipAreThoseOfAColdEngineOnTheNewWeightsGivenTheSamePrefix) {
  const std::vector<GenerateRequest> requests = EightRequests(config_);
  Bench bench = NewBench({.max_step_tokens = 50});
  std::vector<std::shared_ptr<Collector>> sinks;
  for (const GenerateRequest& request : requests) sinks.push_back(bench.Submit(request));
  for (int step = 0; step < 9; ++step) bench.Step(weights_);

  bench.scheduler().Invalidate(next_weights_.version());
  bench.RunToEnd(next_weights_);

  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::vector<GeneratedToken>& tokens = sinks[i]->tokens;
    const auto flip = std::find_if(tokens.begin(), tokens.end(), [](const auto& token) { return token.version == 2; });
    ASSERT_NE(flip, tokens.end());
    const std::vector<GeneratedToken> before(tokens.begin(), flip), after(flip, tokens.end());
    for (const GeneratedToken& token : before) EXPECT_TRUE(token.version == 1 && token.kv_epoch == 1);
    for (const GeneratedToken& token : after) EXPECT_TRUE(token.version == 2 && token.kv_epoch == 2);
    GenerateRequest continued = requests[i];
    for (const GeneratedToken& token : before) continued.prompt.push_back(token.id);
    continued.max_new_tokens -= static_cast<std::int32_t>(before.size());
    EXPECT_EQ(AnswerOf(after), Alone(continued, next_weights_)) << "request " << i;
    Answer old = Alone(requests[i], weights_);
    old.resize(before.size());
    EXPECT_EQ(AnswerOf(before), old) << "request " << i;
  }
}

// C-001.
TEST_P(DecoderTest, AFlipWithoutInvalidationStillReadsNoStaleState) {
  const GenerateRequest request = {
      .prompt = RandomPrompt(config_, 20, 6), .max_new_tokens = 20, .temperature = 0, .seed = 0, .stop = {}};
  Bench bench = NewBench();
  const auto sink = bench.Submit(request);
  for (int step = 0; step < 5; ++step) bench.Step(weights_);

  bench.RunToEnd(next_weights_);

  GenerateRequest continued = request;
  for (std::size_t i = 0; i < 5; ++i) continued.prompt.push_back(sink->tokens[i].id);
  continued.max_new_tokens -= 5;
  EXPECT_EQ(AnswerOf({sink->tokens.begin() + 5, sink->tokens.end()}), Alone(continued, next_weights_));
}

TEST_P(DecoderTest, TheSameSeedReproducesAndAnotherSeedDiffers) {
  GenerateRequest request = {
      .prompt = RandomPrompt(config_, 8, 7), .max_new_tokens = 40, .temperature = 1, .seed = 11, .stop = {}};
  const Answer first = Alone(request, weights_);

  EXPECT_EQ(Alone(request, weights_), first);
  request.seed = 12;
  EXPECT_NE(Alone(request, weights_), first);
}

TEST_P(DecoderTest, APaddedVocabularyRowIsNeverSampled) {
  Bench bench = NewBench();
  const auto sink = bench.Submit(
      {.prompt = RandomPrompt(config_, 8, 8), .max_new_tokens = 300, .temperature = 50, .seed = 3, .stop = {}});

  bench.RunToEnd(weights_);

  std::int32_t largest = 0;
  for (const GeneratedToken& token : sink->tokens) {
    ASSERT_LT(token.id, config_.vocabulary);
    largest = std::max(largest, token.id);
  }
  EXPECT_GT(largest, config_.vocabulary * 9 / 10);  // nearly uniform: high ids do come
}

// Ranks add the same products in another order: what differs is rounding. The models' log-probabilities come from sums
// of fewer than 100 terms in two or three layers; each layer adds a few units of 2^-24 of the residual's size.
constexpr float kBetweenRanks = 2e-5f;

struct RankCase {
  const char* name;
  ModelConfig config;
  std::vector<int> ranks;
};

class RanksTest : public testing::TestWithParam<RankCase> {
 protected:
  // Logits after each of `tokens`, from one step that holds them all.
  static std::vector<std::vector<float>> LogitsOf(const ModelConfig& config, const LogicalWeights& logical, int ranks,
                                                  const std::vector<std::int32_t>& tokens, int threads = 1) {
    const PlainWeights weights(Fuse(config, logical, DType::kBf16, ranks), 1);
    const RankShape shape = *RankShapeOf(config, weights.tensors(), ranks);
    const auto cache = *KvCache::Create({config.layers, shape.kv_heads, config.head_size, 64, ranks}, 1);
    const auto count = static_cast<std::int64_t>(tokens.size());
    const auto decoder = *HostDecoder::Create({.config = config,
                                               .tensors = weights.tensors(),
                                               .shape = shape,
                                               .threads = threads,
                                               .max_rows = count,
                                               .max_logits = count},
                                              *cache);
    const std::vector<std::int32_t> pages = {0};
    std::vector<StepRow> rows;
    for (std::int64_t i = 0; i < count; ++i) {
      rows.push_back({tokens[static_cast<std::size_t>(i)], i, pages.data(), true});
    }
    decoder->Forward(rows, weights);
    std::vector<std::vector<float>> logits;
    for (std::int64_t i = 0; i < count; ++i) logits.emplace_back(decoder->Logits(i).begin(), decoder->Logits(i).end());
    return logits;
  }
  static std::vector<float> LogSoftmax(std::vector<float> logits) {
    double total = 0;
    for (const float logit : logits) total += std::exp(double{logit});
    for (float& logit : logits) logit = static_cast<float>(logit - std::log(total));
    return logits;
  }
};

INSTANTIATE_TEST_SUITE_P(Models, RanksTest,
                         testing::Values(RankCase{"Llama", TinyLlama(), {2, 4}}, RankCase{"Qwen3", TinyQwen3(), {2}},
                                         RankCase{"OneKvHead", OneKvHead(), {2, 4, 8}},
                                         RankCase{"ThreeKvHeads", ThreeKvHeads(), {3, 6}},
                                         RankCase{"AllBiases", AllBiases(), {2, 4}}),
                         [](const auto& test) { return test.param.name; });

TEST_P(RanksTest, LogprobsAgreeWithOneRankAndTheBestTokenDiffersOnlyWhereTwoAreThatClose) {
  const ModelConfig& config = GetParam().config;
  const LogicalWeights logical = RandomWeights(config, 3);
  const std::vector<std::int32_t> tokens = RandomPrompt(config, 60, 4);
  const std::vector<std::vector<float>> one = LogitsOf(config, logical, 1, tokens);

  for (const int ranks : GetParam().ranks) {
    const std::vector<std::vector<float>> several = LogitsOf(config, logical, ranks, tokens);

    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<float> want = LogSoftmax(one[i]), got = LogSoftmax(several[i]);
      for (std::size_t t = 0; t < want.size(); ++t) {
        ASSERT_NEAR(got[t], want[t], kBetweenRanks) << ranks << " ranks, position " << i << ", token " << t;
      }
      const auto best = static_cast<std::size_t>(std::max_element(got.begin(), got.end()) - got.begin());
      EXPECT_GE(want[best], *std::max_element(want.begin(), want.end()) - 2 * kBetweenRanks);
    }
  }
}

TEST_P(RanksTest, ASecondDecoderGivesTheSameBitsOnAnyNumberOfThreads) {
  const ModelConfig& config = GetParam().config;
  const LogicalWeights logical = RandomWeights(config, 3);
  const std::vector<std::int32_t> tokens = RandomPrompt(config, 60, 4);

  for (const int ranks : GetParam().ranks) {
    const std::vector<std::vector<float>> first = LogitsOf(config, logical, ranks, tokens);
    for (const int threads : {1, 2, 5, 2 * ranks + 1}) {
      EXPECT_EQ(LogitsOf(config, logical, ranks, tokens, threads), first) << ranks << " ranks, " << threads;
    }
  }
}

TEST(RankShapeTest, SizesThatRanksCannotShareAreRefusedWithTheNumbers) {
  const auto refusal = [](int ranks, const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = TinyLlama();
    config.query_heads = 12;
    config.kv_heads = 3;
    change(config);
    EngineTensors tensors;
    tensors.padded_vocabulary = 192;
    const Result<RankShape> shape = RankShapeOf(config, tensors, ranks);
    return shape.ok() ? "" : shape.status().message();
  };

  EXPECT_EQ(refusal(3, [](ModelConfig&) {}), "");
  EXPECT_EQ(refusal(6, [](ModelConfig&) {}), "");
  EXPECT_EQ(refusal(5, [](ModelConfig&) {}), "12 query heads cannot be shared by 5 ranks");
  EXPECT_EQ(refusal(2, [](ModelConfig&) {}), "3 KV heads cannot be shared by 2 ranks");
  EXPECT_EQ(refusal(3, [](ModelConfig& c) { c.ffn = 100; }), "100 feed-forward elements cannot be shared by 3 ranks");
  EXPECT_EQ(refusal(9, [](ModelConfig& c) { c.query_heads = 9, c.ffn = 99; }),
            "192 vocabulary rows cannot be shared by 9 ranks");
}

TEST(DecoderFailureTest, LogitsThatAreNotFiniteEndTheRequestAsFailedAndNotItsNeighbours) {
  const ModelConfig config = TinyLlama();
  LogicalWeights logical = RandomWeights(config, 1);
  logical.at("model.embed_tokens.weight")[5 * 64] = std::numeric_limits<float>::infinity();  // token 5 only
  const PlainWeights weights(Fuse(config, logical, DType::kF32), 1);
  Bench bench(config, weights.tensors(), WeightType::kF32);
  const auto broken = bench.Submit({.prompt = {5}, .max_new_tokens = 4, .temperature = 0, .seed = 0, .stop = {}});
  const auto whole = bench.Submit({.prompt = {6}, .max_new_tokens = 1, .temperature = 0, .seed = 0, .stop = {}});

  bench.RunToEnd(weights);

  EXPECT_EQ(broken->finish, FinishReason::kFailed);
  EXPECT_EQ(broken->status.reason(), "logits_not_finite");
  EXPECT_TRUE(broken->tokens.empty());
  EXPECT_EQ(whole->finish, FinishReason::kLength);
  EXPECT_EQ(bench.scheduler().pages_used(), 0);
}

}  // namespace
}  // namespace bascule
