// The library's product against a double-precision sum that shares no code with it, within the bound of the header.
#include "kernels/onednn/onednn_gemm.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <thread>

#include "kernels/cast.h"

namespace bascule {
namespace {

constexpr float kUntouched = 12345;

struct Matrix {
  std::vector<float> values;  // before they were rounded
  std::vector<std::uint16_t> bf16;
  const std::byte* bytes() const { return reinterpret_cast<const std::byte*>(bf16.data()); }
};

// `width` >= `columns`: elements of a stored row.
Matrix RandomMatrix(std::int64_t rows, std::int64_t columns, std::int64_t width, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Matrix matrix;
  matrix.bf16.resize(static_cast<std::size_t>(rows * width));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      matrix.values.push_back(normal(random));
      matrix.bf16[static_cast<std::size_t>(r * width + c)] =
          Bf16BitsOfF32Bits(std::bit_cast<std::uint32_t>(matrix.values.back()));
    }
  }
  return matrix;
}

class OneDnnGemmTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = MakeOneDnnGemm();
    if (made.status().reason() == "numerics_unsupported") GTEST_SKIP() << made.status().ToString();
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    gemm_ = *std::move(made);
  }
  std::unique_ptr<FastGemm> gemm_;
};

struct Case {
  std::int64_t rows, k, outputs;
};

// One product, with `y` wider than its outputs, in two ranges at once on two threads.
void ExpectWithinTheBound(FastGemm& gemm, const Case& c, bool accumulate) {
  const Matrix x = RandomMatrix(RowsComputed(c.rows), c.k, PackedBf16Width(c.k), 1);
  Matrix w = RandomMatrix(c.outputs, c.k, c.k, 2);
  for (std::size_t i = 0; i < w.values.size(); ++i) w.values[i] = std::bit_cast<float>(F32BitsOfBf16Bits(w.bf16[i]));
  const std::int64_t stride = c.outputs + 5;
  std::vector<float> y(static_cast<std::size_t>(RowsComputed(c.rows) * stride), kUntouched);
  const FastGemmProblem problem{x.bytes(), c.rows, c.k, w.bytes(), y.data(), stride, accumulate};
  const std::int64_t half = c.outputs / 2;

  std::thread other([&] { gemm.Multiply(problem, 0, half); });
  gemm.Multiply(problem, half, c.outputs);
  other.join();

  for (std::int64_t r = 0; r < c.rows; ++r) {
    for (std::int64_t o = 0; o < c.outputs; ++o) {
      double sum = accumulate ? kUntouched : 0, magnitude = 0;
      for (std::int64_t i = 0; i < c.k; ++i) {
        const double product = double{x.values[r * c.k + i]} * double{w.values[o * c.k + i]};
        sum += product;
        magnitude += std::abs(product);
      }
      const double rounding = accumulate ? kUntouched * 0x1p-23 : 0;
      ASSERT_NEAR(y[r * stride + o], sum, magnitude * 0x1p-8 + rounding) << c.rows << "x" << c.k << "x" << c.outputs;
    }
    for (std::int64_t o = c.outputs; o < stride; ++o) ASSERT_EQ(y[r * stride + o], kUntouched);
  }
}

TEST_F(OneDnnGemmTest, EveryOutputIsWithinTheBoundOfTheHeader) {
  for (const Case& c : {Case{8, 64, 96}, Case{9, 100, 7}, Case{16, 576, 130}, Case{33, 33, 64}, Case{130, 576, 66},
                        Case{300, 1536, 34}, Case{8, 16384, 4}}) {
    ExpectWithinTheBound(*gemm_, c, /*accumulate=*/false);
  }
}

TEST_F(OneDnnGemmTest, AccumulatingAddsTheProductToWhatIsThere) {
  ExpectWithinTheBound(*gemm_, {24, 192, 50}, /*accumulate=*/true);
}

TEST_F(OneDnnGemmTest, WhatLiesInRowsBeyondChangesNothing) {
  const std::int64_t rows = 9, k = 64, outputs = 32;
  Matrix x = RandomMatrix(RowsComputed(rows), k, k, 1);
  const Matrix w = RandomMatrix(outputs, k, k, 2);
  std::vector<std::vector<float>> results;
  for (const std::uint16_t beyond :
       std::vector<std::uint16_t>{0, 0x7fc0, 0x7f80}) {  // zeros, not-a-numbers, infinities
    std::fill(x.bf16.begin() + rows * k, x.bf16.end(), beyond);
    std::vector<float> y(static_cast<std::size_t>(RowsComputed(rows) * outputs));
    gemm_->Multiply({x.bytes(), rows, k, w.bytes(), y.data(), outputs}, 0, outputs);
    y.resize(static_cast<std::size_t>(rows * outputs));
    results.push_back(std::move(y));
  }

  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

}  // namespace
}  // namespace bascule
