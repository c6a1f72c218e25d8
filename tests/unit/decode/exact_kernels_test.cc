// The numeric kernels: each against a double-precision brute force that shares no code with them, and every instruction
// set against the others, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/add.h"
#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/sample.h"
#include "kernels/swiglu.h"

namespace bascule {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// 64-byte aligned floats.
class Floats {
 public:
  explicit Floats(std::size_t size, float value = 0) : memory_(size + 16, value) {
    void* at = memory_.data();
    std::size_t space = memory_.size() * sizeof(float);
    data_ = static_cast<float*>(std::align(64, size * sizeof(float), at, space));
    size_ = size;
  }
  float* data() { return data_; }
  float& operator[](std::size_t i) { return data_[i]; }
  std::vector<float> values() const { return {data_, data_ + size_}; }

 private:
  std::vector<float> memory_;
  float* data_ = nullptr;
  std::size_t size_ = 0;
};

std::vector<float> RandomFloats(std::size_t size, std::uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

float TruncatedToBf16(float value) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffff0000u); }

// The bytes of `values` as weights of `type`; for bf16 the values are cut to what it holds.
std::vector<std::byte> AsWeights(std::vector<float>& values, WeightType type) {
  std::vector<std::byte> bytes;
  for (float& value : values) {
    if (type == WeightType::kBf16) value = TruncatedToBf16(value);
    const auto bits = std::bit_cast<std::array<std::byte, 4>>(value);
    bytes.insert(bytes.end(), bits.begin() + (type == WeightType::kBf16 ? 2 : 0), bits.end());
  }
  return bytes;
}

std::vector<std::uint32_t> Bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

std::vector<float> Gemm(const std::vector<float>& x, std::int64_t rows, std::int64_t k, WeightView w,
                        std::int64_t outputs, Isa isa) {
  Floats packed(static_cast<std::size_t>(rows * PackedWidth(k)), kNan);
  PackRowsOnHost(x.data(), rows, k, k, packed.data(), isa);
  std::vector<float> y(static_cast<std::size_t>(rows * outputs), kNan);
  GemmOnHost({packed.data(), rows, k, w, y.data(), outputs, false}, 0, outputs, isa);
  return y;
}

struct GemmShape {
  std::int64_t rows, k, outputs;
};
constexpr GemmShape kGemmShapes[] = {{1, 1, 1},    {1, 64, 7},   {3, 31, 5},    {4, 32, 3},  {5, 33, 4},
                                     {9, 576, 11}, {8, 1536, 6}, {13, 100, 25}, {2, 4099, 3}};

class GemmTest : public testing::TestWithParam<WeightType> {};

TEST_P(GemmTest, EveryOutputIsWithinRoundingOfADoublePrecisionSum) {
  for (const auto& [rows, k, outputs] : kGemmShapes) {
    const std::vector<float> x = RandomFloats(static_cast<std::size_t>(rows * k), 1);
    std::vector<float> w = RandomFloats(static_cast<std::size_t>(outputs * k), 2);
    const std::vector<std::byte> bytes = AsWeights(w, GetParam());

    const std::vector<float> y = Gemm(x, rows, k, {bytes.data(), GetParam()}, outputs, BestIsa());

    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < outputs; ++o) {
        double sum = 0, magnitude = 0;
        for (std::int64_t i = 0; i < k; ++i) {
          const double product = double{x[r * k + i]} * double{w[o * k + i]};
          sum += product;
          magnitude += std::abs(product);
        }
        // Each lane rounds k / 32 times and the tree 5 times, by at most 2^-24 of the magnitude so far.
        const double tolerance = (static_cast<double>(k) / 32 + 6) * 0x1p-24 * magnitude;
        EXPECT_NEAR(y[r * outputs + o], sum, tolerance) << rows << "x" << k << "x" << outputs;
      }
    }
  }
}

TEST_P(GemmTest, EveryInstructionSetGivesTheSameBits) {
  for (const auto& [rows, k, outputs] : kGemmShapes) {
    const std::vector<float> x = RandomFloats(static_cast<std::size_t>(rows * k), 3);
    std::vector<float> w = RandomFloats(static_cast<std::size_t>(outputs * k), 4);
    const std::vector<std::byte> bytes = AsWeights(w, GetParam());
    const WeightView view{bytes.data(), GetParam()};
    const auto reference = Bits(Gemm(x, rows, k, view, outputs, Isa::kScalar));

    for (const Isa isa : AvailableIsas()) {
      EXPECT_EQ(Bits(Gemm(x, rows, k, view, outputs, isa)), reference) << IsaName(isa) << " k=" << k;
    }
  }
}

TEST_P(GemmTest, AnOutputDoesNotDependOnRowsOrOnTheRangeItIsComputedIn) {
  const std::int64_t rows = 9, k = 77, outputs = 23;
  const std::vector<float> x = RandomFloats(rows * k, 5);
  std::vector<float> w = RandomFloats(outputs * k, 6);
  const std::vector<std::byte> bytes = AsWeights(w, GetParam());
  const WeightView view{bytes.data(), GetParam()};
  for (const Isa isa : AvailableIsas()) {
    const std::vector<float> whole = Gemm(x, rows, k, view, outputs, isa);

    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < outputs; ++o) {
        const std::vector<float> row(x.begin() + r * k, x.begin() + (r + 1) * k);
        EXPECT_EQ(Bits(Gemm(row, 1, k, view.From(o * k), 1, isa)), Bits({whole[r * outputs + o]}));
      }
    }
  }
}

TEST_P(GemmTest, TheLanesAndTheTreeAreThoseOfTheHeader) {
  const std::int64_t k = 75;
  const std::vector<float> x = RandomFloats(k, 7);
  std::vector<float> w = RandomFloats(k, 8);
  const std::vector<std::byte> bytes = AsWeights(w, GetParam());
  float lane[32] = {}, half[16];
  for (std::int64_t i = 0; i < k; ++i) lane[i % 32] = std::fma(x[i], w[i], lane[i % 32]);
  for (int i = 0; i < 16; ++i) half[i] = lane[2 * i] + lane[2 * i + 1];
  for (int n = 8; n >= 1; n /= 2) {
    for (int i = 0; i < n; ++i) half[i] += half[i + n];
  }

  for (const Isa isa : AvailableIsas()) {
    EXPECT_EQ(Bits(Gemm(x, 1, k, {bytes.data(), GetParam()}, 1, isa)), Bits({half[0]})) << IsaName(isa);
  }
}

INSTANTIATE_TEST_SUITE_P(WeightTypes, GemmTest, testing::Values(WeightType::kBf16, WeightType::kF32),
                         [](const auto& test) { return test.param == WeightType::kBf16 ? "bf16" : "f32"; });

TEST(GemmTest, AccumulatingAddsTheProductToWhatIsThere) {
  const std::int64_t k = 40;
  const std::vector<float> x = RandomFloats(k, 9);
  std::vector<float> w = RandomFloats(k, 10);
  const std::vector<std::byte> bytes = AsWeights(w, WeightType::kF32);
  const float product = Gemm(x, 1, k, {bytes.data(), WeightType::kF32}, 1, BestIsa())[0];
  Floats packed(static_cast<std::size_t>(PackedWidth(k)));
  PackRowsOnHost(x.data(), 1, k, k, packed.data());
  float y = 3.25f;

  GemmOnHost({packed.data(), 1, k, {bytes.data(), WeightType::kF32}, &y, 1, true}, 0, 1);

  EXPECT_EQ(y, 3.25f + product);
}

TEST(GemmTest, Bf16WeightsGiveTheBitsOfTheSameWeightsInFp32) {
  const std::int64_t rows = 5, k = 131, outputs = 9;
  const std::vector<float> x = RandomFloats(rows * k, 11);
  std::vector<float> w = RandomFloats(outputs * k, 12);
  const std::vector<std::byte> narrow = AsWeights(w, WeightType::kBf16);
  const std::vector<std::byte> wide = AsWeights(w, WeightType::kF32);

  EXPECT_EQ(Bits(Gemm(x, rows, k, {narrow.data(), WeightType::kBf16}, outputs, BestIsa())),
            Bits(Gemm(x, rows, k, {wide.data(), WeightType::kF32}, outputs, BestIsa())));
}

TEST(AddTest, IsOneRoundedAdditionAnElementUnderEveryInstructionSet) {
  for (const std::size_t size : {1u, 15u, 16u, 77u, 160u}) {
    for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
      std::vector<float> x = RandomFloats(size, 7);
      const std::vector<std::byte> bytes = AsWeights(x, type);
      const std::vector<float> y = RandomFloats(size, 8);
      std::vector<float> want = y;
      for (std::size_t i = 0; i < size; ++i) want[i] += x[i];
      for (const Isa isa : AvailableIsas()) {
        std::vector<float> sum = y;

        AddOnHost({bytes.data(), type}, static_cast<std::int64_t>(size), sum.data(), isa);

        EXPECT_EQ(Bits(sum), Bits(want));
      }
    }
  }
}

TEST(RmsNormTest, MatchesDoublePrecisionAndEveryInstructionSetGivesTheSameBits) {
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    for (const std::size_t size : {1u, 15u, 16u, 17u, 64u, 576u, 1000u}) {
      const std::vector<float> x = RandomFloats(size, 13, 3);
      std::vector<float> w = RandomFloats(size, 14);
      const std::vector<std::byte> bytes = AsWeights(w, type);
      const double mean_square =
          std::accumulate(x.begin(), x.end(), 0.0, [](double sum, double v) { return sum + v * v; }) /
          static_cast<double>(size);
      std::vector<float> reference(size);
      RmsNormOnHost(x.data(), static_cast<std::int64_t>(size), {bytes.data(), type}, 1e-5f, reference.data(),
                    Isa::kScalar);

      for (std::size_t i = 0; i < size; ++i) {
        const double want = x[i] / std::sqrt(mean_square + 1e-5) * w[i];
        EXPECT_NEAR(reference[i], want, 1e-5 * std::abs(want) + 1e-9);
      }
      for (const Isa isa : AvailableIsas()) {
        std::vector<float> y(size, kNan);
        RmsNormOnHost(x.data(), static_cast<std::int64_t>(size), {bytes.data(), type}, 1e-5f, y.data(), isa);
        EXPECT_EQ(Bits(y), Bits(reference)) << IsaName(isa) << " size=" << size;
      }
    }
  }
}

TEST(SwigluTest, MatchesDoublePrecisionAndEveryInstructionSetGivesTheSameBits) {
  for (const std::size_t size : {1u, 16u, 19u, 96u, 1536u}) {
    std::vector<float> gate = RandomFloats(size, 15, 20);
    gate[0] = -200;  // exp(-gate) overflows: the activation goes to zero
    const std::vector<float> up = RandomFloats(size, 16);
    std::vector<float> reference(size);
    SwigluOnHost(gate.data(), up.data(), static_cast<std::int64_t>(size), reference.data(), Isa::kScalar);

    for (std::size_t i = 0; i < size; ++i) {
      const double want = gate[i] / (1 + std::exp(-double{gate[i]})) * up[i];
      EXPECT_NEAR(reference[i], want, 1e-6 * std::abs(want) + 1e-30);
    }
    for (const Isa isa : AvailableIsas()) {
      std::vector<float> y(size, kNan);
      SwigluOnHost(gate.data(), up.data(), static_cast<std::int64_t>(size), y.data(), isa);
      EXPECT_EQ(Bits(y), Bits(reference)) << IsaName(isa) << " size=" << size;
    }
  }
}

TEST(RopeTest, RotatesEachPairOfHalvesByPositionTimesFrequency) {
  const std::int64_t head_size = 10, half = 5, position = 1234;
  const double theta = 10000;
  const std::vector<float> before = RandomFloats(head_size, 17);
  const std::vector<double> frequencies = RopeFrequencies(theta, head_size);
  std::vector<float> cosines(half), sines(half), head = before;

  RopeAngles(frequencies, position, cosines, sines);
  RopeOnHost(head.data(), cosines, sines);

  for (std::int64_t i = 0; i < half; ++i) {
    const double angle = position / std::pow(theta, 2.0 * static_cast<double>(i) / head_size);
    const double a = before[i], b = before[half + i];
    EXPECT_NEAR(head[i], a * std::cos(angle) - b * std::sin(angle), 1e-6);
    EXPECT_NEAR(head[half + i], a * std::sin(angle) + b * std::cos(angle), 1e-6);
  }
}

// From transformers 4.46, modeling_rope_utils._compute_llama3_parameters with the values of Llama 3.2 1B: theta 500000,
// head size 64, factor 32, low 1, high 4, original positions 8192.
TEST(RopeTest, StretchedFrequenciesAreThoseOfThePublishedRule) {
  std::vector<double> frequencies = RopeFrequencies(500000, 64);
  const std::vector<double> plain = frequencies;

  StretchFrequencies({.factor = 32, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_positions = 8192},
                     frequencies);

  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double wavelength = 2 * 3.14159265358979323846 / plain[i];
    const double smooth = (8192 / wavelength - 1) / (4 - 1);
    const double blend = (1 - smooth) * plain[i] / 32 + smooth * plain[i];
    const double want = wavelength < 8192.0 / 4 ? plain[i] : wavelength > 8192.0 ? plain[i] / 32 : blend;
    EXPECT_NEAR(frequencies[i], want, 1e-12 * want) << i;
  }
  EXPECT_EQ(frequencies[0], 1.0);
  EXPECT_NEAR(frequencies[31], plain[31] / 32, 1e-20);
}

// A cache of one KV head whose pages lie in reverse order, filled with NaN where nothing is stored.
struct OneHeadCache {
  OneHeadCache(std::int64_t positions, std::int64_t head_size, std::int64_t page_tokens)
      : page_count((positions + page_tokens - 1) / page_tokens),
        page_floats(page_tokens * (head_size + PaddedHead(head_size))),
        pool(static_cast<std::size_t>(page_count * page_floats), kNan) {
    for (std::int64_t p = page_count - 1; p >= 0; --p) pages.push_back(static_cast<std::int32_t>(p));
    view = {pool.data(), pages.data(), page_floats, page_tokens, 0, page_tokens * head_size, head_size};
  }
  std::int64_t page_count, page_floats;
  Floats pool;
  std::vector<std::int32_t> pages;
  KvHeadView view;
};

struct AttentionShape {
  std::int64_t positions, head_size, heads, page_tokens;
};
constexpr AttentionShape kAttentionShapes[] = {{1, 16, 1, 16},    {16, 16, 2, 16}, {17, 64, 3, 16}, {40, 10, 5, 32},
                                               {100, 128, 8, 16}, {33, 33, 4, 16}, {64, 80, 6, 64}};

std::vector<float> Attend(const AttentionShape& shape, const std::vector<float>& keys, const std::vector<float>& values,
                          const std::vector<float>& query, Isa isa) {
  const auto [positions, head_size, heads, page_tokens] = shape;
  OneHeadCache cache(positions, head_size, page_tokens);
  for (std::int64_t t = 0; t < positions; ++t) {
    StoreKvOnHost(cache.view, t, keys.data() + t * head_size, values.data() + t * head_size);
  }
  Floats scratch(static_cast<std::size_t>(AttentionScratch(positions)), kNan);
  std::vector<float> out(static_cast<std::size_t>(heads * head_size), kNan);
  const float scale = 1 / std::sqrt(static_cast<float>(head_size));
  AttentionOnHost({cache.view, positions, heads, query.data(), scale, out.data(), scratch.data()}, isa);
  return out;
}

TEST(AttentionTest, MatchesDoublePrecisionSoftmaxOverTheStoredPositions) {
  for (const AttentionShape& shape : kAttentionShapes) {
    const auto [positions, head_size, heads, page_tokens] = shape;
    const std::vector<float> keys = RandomFloats(static_cast<std::size_t>(positions * head_size), 18);
    const std::vector<float> values = RandomFloats(static_cast<std::size_t>(positions * head_size), 19);
    const std::vector<float> query = RandomFloats(static_cast<std::size_t>(heads * head_size), 20, 2);

    const std::vector<float> out = Attend(shape, keys, values, query, BestIsa());

    for (std::int64_t h = 0; h < heads; ++h) {
      std::vector<double> weight(static_cast<std::size_t>(positions));
      for (std::int64_t t = 0; t < positions; ++t) {
        double score = 0;
        for (std::int64_t d = 0; d < head_size; ++d)
          score += double{query[h * head_size + d]} * keys[t * head_size + d];
        weight[t] = std::exp(score / std::sqrt(static_cast<double>(head_size)));
      }
      const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
      for (std::int64_t d = 0; d < head_size; ++d) {
        double want = 0;
        for (std::int64_t t = 0; t < positions; ++t) want += weight[t] / total * values[t * head_size + d];
        EXPECT_NEAR(out[h * head_size + d], want, 2e-5) << "positions=" << positions << " head_size=" << head_size;
      }
    }
  }
}

TEST(AttentionTest, EveryInstructionSetPageSizeAndHeadGroupingGivesTheSameBits) {
  for (const AttentionShape& shape : kAttentionShapes) {
    const auto [positions, head_size, heads, page_tokens] = shape;
    const std::vector<float> keys = RandomFloats(static_cast<std::size_t>(positions * head_size), 21);
    const std::vector<float> values = RandomFloats(static_cast<std::size_t>(positions * head_size), 22);
    const std::vector<float> query = RandomFloats(static_cast<std::size_t>(heads * head_size), 23, 2);
    const auto reference = Bits(Attend(shape, keys, values, query, Isa::kScalar));

    for (const Isa isa : AvailableIsas()) {
      EXPECT_EQ(Bits(Attend({positions, head_size, heads, 48}, keys, values, query, isa)), reference) << IsaName(isa);
      std::vector<float> one_by_one;
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::vector<float> q(query.begin() + h * head_size, query.begin() + (h + 1) * head_size);
        const std::vector<float> out = Attend({positions, head_size, 1, page_tokens}, keys, values, q, isa);
        one_by_one.insert(one_by_one.end(), out.begin(), out.end());
      }
      EXPECT_EQ(Bits(one_by_one), reference) << IsaName(isa);
    }
  }
}

// Known answers of Random123's kat_vectors, philox4x32 with 10 rounds.
TEST(PhiloxTest, GivesTheKnownAnswersOfRandom123) {
  using Words = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t kOnes = 0xffffffff;

  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxTest, UniformsDifferByPositionAndSeedAndLieInTheUnitInterval) {
  double sum = 0;
  for (std::uint64_t position = 0; position < 10000; ++position) {
    const double u = UniformAt(7, position);
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
  }

  EXPECT_NEAR(sum / 10000, 0.5, 0.015);  // five standard deviations
  EXPECT_NE(UniformAt(7, 1), UniformAt(8, 1));
  EXPECT_NE(UniformAt(7, 1), UniformAt(7, 1 + (std::uint64_t{1} << 32)));
}

std::optional<SampledToken> Sample(const std::vector<float>& logits, float temperature, double uniform,
                                   Isa isa = BestIsa()) {
  std::vector<float> scratch(logits.size());
  return SampleOnHost(logits, {.temperature = temperature}, uniform, scratch, isa);
}

double LogSoftmax(const std::vector<float>& logits, std::int32_t id) {
  double total = 0;
  for (const float logit : logits) total += std::exp(double{logit} - logits[id]);
  return -std::log(total);
}

TEST(SampleTest, TemperatureZeroTakesTheLowestIdOfTheLargestLogits) {
  std::vector<float> logits = RandomFloats(130, 24);
  logits[40] = logits[77] = 9;

  const std::optional<SampledToken> token = Sample(logits, 0, 0.99);

  ASSERT_TRUE(token.has_value());
  EXPECT_EQ(token->id, 40);
  EXPECT_NEAR(token->logprob, LogSoftmax(logits, 40), 1e-5);
}

TEST(SampleTest, DrawsEachTokenWithItsTemperedProbabilityAndReportsTheUntemperedLogprob) {
  const std::vector<float> logits = {0.5f, -1, 2, 0, 1.5f};
  constexpr float kTemperature = 0.7f;
  constexpr int kDraws = 20000;
  std::vector<double> probability;
  for (const float logit : logits) probability.push_back(std::exp(logit / kTemperature));
  const double total = std::accumulate(probability.begin(), probability.end(), 0.0);
  std::vector<int> seen(logits.size());

  for (int draw = 0; draw < kDraws; ++draw) {
    const std::optional<SampledToken> token = Sample(logits, kTemperature, (draw + 0.5) / kDraws);
    ASSERT_TRUE(token.has_value());
    ++seen[static_cast<std::size_t>(token->id)];
    ASSERT_NEAR(token->logprob, LogSoftmax(logits, token->id), 1e-5);
  }

  for (std::size_t id = 0; id < logits.size(); ++id) {
    EXPECT_NEAR(seen[id], kDraws * probability[id] / total, 2) << id;  // the draws are a regular grid
  }
}

TEST(SampleTest, EveryInstructionSetGivesTheSameTokenAndTheSameBits) {
  for (const std::size_t size : {1u, 7u, 16u, 130u, 4099u}) {
    const std::vector<float> logits = RandomFloats(size, 25, 4);
    for (const float temperature : {0.0f, 0.3f, 1.0f}) {
      const std::optional<SampledToken> reference = Sample(logits, temperature, 0.37, Isa::kScalar);
      ASSERT_TRUE(reference.has_value());
      for (const Isa isa : AvailableIsas()) {
        const std::optional<SampledToken> token = Sample(logits, temperature, 0.37, isa);
        EXPECT_EQ(token->id, reference->id);
        EXPECT_EQ(Bits({token->logprob}), Bits({reference->logprob}));
      }
    }
  }
}

// The probabilities with which tokens may be drawn under `rule`, by sorting, in long double; none where a boundary is
// too near to tell.
std::optional<std::vector<double>> BruteForceChances(const std::vector<float>& logits, const SampleRule& rule) {
  std::vector<std::pair<long double, int>> ranked;  // by falling probability, then rising id
  for (int id = 0; std::cmp_less(id, logits.size()); ++id) {
    if (std::find(rule.banned.begin(), rule.banned.end(), id) != rule.banned.end()) continue;
    ranked.emplace_back(-std::exp(static_cast<long double>(logits[static_cast<std::size_t>(id)]) / rule.temperature),
                        id);
  }
  std::sort(ranked.begin(), ranked.end());
  if (rule.top_k > 0) ranked.resize(std::min(ranked.size(), static_cast<std::size_t>(rule.top_k)));
  long double total = 0, sum = 0;
  for (const auto& [weight, id] : ranked) total -= weight;
  std::size_t kept = 0;
  while (kept < ranked.size() && sum < rule.top_p * total) {
    sum -= ranked[kept++].first;
    if (std::abs(sum / total - rule.top_p) < 1e-5L && rule.top_p < 1) return std::nullopt;
  }
  std::vector<double> chances(logits.size());
  for (std::size_t i = 0; i < kept; ++i) {
    chances[static_cast<std::size_t>(ranked[i].second)] = static_cast<double>(-ranked[i].first / sum);
  }
  return chances;
}

TEST(SampleTest, WhatIsCutAwayIsNeverDrawnAndTheRestAsOftenAsBruteForceSays) {
  constexpr int kDraws = 1000;
  std::mt19937 random(20261130);
  int compared = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<float> logits(1 + random() % 90);
    for (float& logit : logits) logit = static_cast<float>(random() % 25) / 4 - 3;  // many are equal
    std::vector<std::int32_t> banned;
    for (std::size_t b = 0; b + 1 < logits.size() && b < round % 4U; ++b) {
      banned.push_back(static_cast<std::int32_t>(random() % logits.size()));
    }
    const SampleRule rule{.temperature = 0.5F + static_cast<float>(random() % 4) / 2,
                          .top_k = static_cast<std::int32_t>(random() % 3 == 0 ? 0 : 1 + random() % 100),
                          .top_p = random() % 3 == 0 ? 1.0F : static_cast<float>(1 + random() % 99) / 100,
                          .banned = banned};
    const auto chances = BruteForceChances(logits, rule);
    if (!chances || *std::max_element(chances->begin(), chances->end()) == 0) continue;
    ++compared;

    std::vector<double> drawn(logits.size());
    std::vector<float> scratch(logits.size());
    for (int draw = 0; draw < kDraws; ++draw) {
      const auto token = SampleOnHost(logits, rule, (draw + 0.5) / kDraws, scratch);
      ASSERT_TRUE(token);
      drawn[static_cast<std::size_t>(token->id)] += 1.0 / kDraws;
    }

    for (std::size_t id = 0; id < logits.size(); ++id) {
      EXPECT_NEAR(drawn[id], (*chances)[id], 1.5 / kDraws) << "round " << round << " id " << id;
      EXPECT_TRUE((*chances)[id] > 0 || drawn[id] == 0) << "round " << round << " id " << id;
    }
  }
  EXPECT_GT(compared, 40);
}

TEST(SampleTest, TheMostProbableTokensAreThoseOfASortAndABannedOneIsAmongThem) {
  const std::vector<float> logits = {0.5F, 2, -1, 2, 1, 0};
  const std::vector<std::int32_t> banned = {1};
  std::vector<float> scratch(logits.size());

  const auto token = SampleOnHost(logits, {.banned = banned, .top_logprobs = 3}, 0.5, scratch);

  ASSERT_TRUE(token);
  EXPECT_EQ(token->id, 3);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  ASSERT_EQ(token->top.size(), 3U);
  for (const auto& [rank, id] : {std::pair<std::size_t, std::int32_t>{0, 1}, {1, 3}, {2, 4}}) {
    EXPECT_EQ(token->top[rank].id, id);
    EXPECT_NEAR(token->top[rank].logprob, static_cast<double>(logits[static_cast<std::size_t>(id)]) - std::log(sum),
                1e-5);
  }
}

TEST(SampleTest, LogitsThatAreNotFiniteGiveNoToken) {
  for (const float bad : {kNan, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = RandomFloats(20, 26);
    logits[13] = bad;

    EXPECT_FALSE(Sample(logits, 0, 0).has_value());
    EXPECT_FALSE(Sample(logits, 1, 0.5).has_value());
  }
}

TEST(SampleTest, AVeryLowTemperatureIsGreedy) {
  const std::vector<float> logits = {0.5f, 3, 2.9f, 0};

  EXPECT_EQ(Sample(logits, 1e-30f, 0.999)->id, 1);
}

}  // namespace
}  // namespace bascule
