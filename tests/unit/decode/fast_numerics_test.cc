// Numerics "fast" in the decoder: which products go to the library, and what may come of it.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>

#include "engine_side/decode/host_decoder.h"
#include "kernels/cast.h"
#include "kernels/fast_gemm.h"
#include "tests/unit/decode/reference_decoder.h"
#include "tests/unit/decode/tiny_model.h"

#if defined(BASCULE_ONEDNN)
#include "kernels/onednn/onednn_gemm.h"
#endif

namespace bascule {
namespace {

constexpr std::int64_t kLeastRows = 8;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float Bf16At(const std::byte* from, std::int64_t i) {
  std::uint16_t bits;
  std::memcpy(&bits, from + 2 * i, sizeof bits);
  return std::bit_cast<float>(F32BitsOfBf16Bits(bits));
}

// What a library may do: sums in an order of its own (here in double precision), and anything in rows beyond.
class FakeLibrary final : public FastGemm {
 public:
  std::int64_t least_rows() const override { return kLeastRows; }
  void Multiply(const FastGemmProblem& p, std::int64_t first, std::int64_t last) override {
    for (std::int64_t r = 0; r < RowsComputed(p.rows); ++r) {
      for (std::int64_t o = first; o < last; ++o) {
        double sum = 0;
        for (std::int64_t i = 0; i < p.k; ++i) {
          sum += double{Bf16At(p.x, r * PackedBf16Width(p.k) + i)} * double{Bf16At(p.w, o * p.k + i)};
        }
        float& y = p.y[r * p.y_stride + o];
        y = r >= p.rows ? kNan : static_cast<float>(p.accumulate ? sum + y : sum);
      }
    }
    const std::lock_guard lock(mu_);
    outputs_ += last - first;
  }
  std::int64_t outputs() const { return outputs_; }

 private:
  std::mutex mu_;
  std::int64_t outputs_ = 0;  // computed so far, for however many rows
};

// A decoder whose steps are chunks of one sequence.
class Sequence {
 public:
  Sequence(const ModelConfig& config, DType dtype, int ranks, FastGemm* fast)
      : config_(config),
        logical_(RandomWeights(config, 1)),
        weights_(Fuse(config, logical_, dtype, ranks), 1),
        shape_(*RankShapeOf(config, weights_.tensors(), ranks)),
        cache_(*KvCache::Create({config.layers, shape_.kv_heads, config.head_size, 64, ranks}, 1)),
        decoder_(*HostDecoder::Create({.config = config,
                                       .tensors = weights_.tensors(),
                                       .shape = shape_,
                                       .weight_type = dtype == DType::kBf16 ? WeightType::kBf16 : WeightType::kF32,
                                       .threads = 2,
                                       .max_rows = kTokens,
                                       .max_logits = kTokens,
                                       .fast = fast},
                                      *cache_)) {}

  // The log-probabilities that follow each of the next `count` tokens, which make one step.
  void Step(std::int64_t count) {
    std::vector<StepRow> rows;
    for (std::int64_t i = 0; i < count; ++i, ++at_) rows.push_back({Token(at_), at_, pages_.data(), true});
    decoder_->Forward(rows, weights_);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::span<const float> logits = decoder_->Logits(i);
      logits_.emplace_back(logits.begin(), logits.end());
    }
  }
  const std::vector<std::vector<float>>& logits() const { return logits_; }
  // By how much the log-probabilities so far are wrong, at most.
  double LargestError() const {
    double largest = 0;
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < logits_.size(); ++i) {
      tokens.push_back(Token(static_cast<std::int64_t>(i)));
      const std::vector<double> want = ReferenceLogprobs(config_, logical_, tokens);
      double total = 0;
      for (const float logit : logits_[i]) total += std::exp(double{logit});
      for (std::size_t v = 0; v < want.size(); ++v) {
        const double error = std::abs(logits_[i][v] - std::log(total) - want[v]);
        if (!(error <= largest)) largest = error;  // also where it is not a number
      }
    }
    return largest;
  }

  static constexpr std::int64_t kTokens = 40;

 private:
  std::int32_t Token(std::int64_t i) const { return static_cast<std::int32_t>((7 + 31 * i) % config_.vocabulary); }

  const ModelConfig config_;
  const LogicalWeights logical_;
  const PlainWeights weights_;
  const RankShape shape_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<HostDecoder> decoder_;
  const std::vector<std::int32_t> pages_ = {0};
  std::int64_t at_ = 0;
  std::vector<std::vector<float>> logits_;
};

// These models have logits of some tens: activations of 8 bits move their log-probabilities by a tenth.
constexpr double kExactBound = 1e-4, kFastBound = 0.25;

TEST(FastNumericsTest, AStepOfFewRowsAsksNoLibraryAndIsExactToTheBit) {
  FakeLibrary library;
  Sequence exact(TinyLlama(), DType::kBf16, 1, nullptr), fast(TinyLlama(), DType::kBf16, 1, &library);
  for (Sequence* sequence : {&exact, &fast}) sequence->Step(kLeastRows - 1);

  EXPECT_EQ(fast.logits(), exact.logits());
  EXPECT_EQ(library.outputs(), 0);
}

TEST(FastNumericsTest, Fp32WeightsAskNoLibraryAndAreExactToTheBit) {
  FakeLibrary library;
  Sequence exact(TinyLlama(), DType::kF32, 1, nullptr), fast(TinyLlama(), DType::kF32, 1, &library);
  for (Sequence* sequence : {&exact, &fast}) sequence->Step(Sequence::kTokens);

  EXPECT_EQ(fast.logits(), exact.logits());
  EXPECT_EQ(library.outputs(), 0);
}

TEST(FastNumericsTest, EveryProductOfManyRowsIsTheLibrarysAndTheErrorIsThatOfRoundedActivations) {
  for (const int ranks : {1, 2}) {
    FakeLibrary library;
    const ModelConfig config = TinyLlama();
    Sequence exact(config, DType::kBf16, ranks, nullptr), fast(config, DType::kBf16, ranks, &library);
    for (Sequence* sequence : {&exact, &fast}) sequence->Step(Sequence::kTokens);

    const std::int64_t of_layer =
        (config.query_heads + 2 * config.kv_heads) * config.head_size + 2 * config.ffn + 2 * ranks * config.hidden;
    EXPECT_EQ(library.outputs(), config.layers * of_layer + config.vocabulary) << ranks;
    EXPECT_LT(exact.LargestError(), kExactBound);
    EXPECT_GT(fast.LargestError(), kExactBound);
    EXPECT_LT(fast.LargestError(), kFastBound);
  }
}

TEST(FastNumericsTest, WhatTheLibraryLeavesInRowsBeyondReachesNoLaterStep) {
  FakeLibrary library;
  for (const ModelConfig& config : {TinyLlama(), TinyQwen3(), AllBiases()}) {
    Sequence sequence(config, DType::kBf16, 1, &library);
    for (const std::int64_t rows : {9, 3, 17, 11}) sequence.Step(rows);

    EXPECT_LT(sequence.LargestError(), kFastBound);
  }
}

TEST(FastNumericsTest, RowsComputedAreAtMostAQuarterMoreAndNeverFewer) {
  for (std::int64_t rows = 1; rows < 5000; ++rows) {
    EXPECT_GE(RowsComputed(rows), rows);
    EXPECT_LE(RowsComputed(rows), rows + std::max<std::int64_t>(15, rows / 4));
    EXPECT_GE(RowsComputed(rows + 1), RowsComputed(rows));  // buffers for the most rows serve all
  }
}

#if defined(BASCULE_ONEDNN)
TEST(FastNumericsTest, ADecoderWithOneDnnIsAsNear) {
  const auto library = MakeOneDnnGemm();
  if (library.status().reason() == "numerics_unsupported") GTEST_SKIP() << library.status().ToString();
  for (const ModelConfig& config : {TinyLlama(), TinyQwen3(), AllBiases()}) {
    Sequence sequence(config, DType::kBf16, 1, library->get());
    for (const std::int64_t rows : {9, 3, 17, 11}) sequence.Step(rows);

    EXPECT_LT(sequence.LargestError(), kFastBound);
  }
}
#endif

}  // namespace
}  // namespace bascule
