// The matrix product over any F32x16. Raw pointers and no library calls: an inline function of the library, built here
// for a newer processor, could end up serving the whole program.
#pragma once

#include <cstring>

#include "kernels/exact_internal.h"

namespace bascule::exact_internal {

inline constexpr std::int64_t kBlock = 32;

// How the product loads 32 weights.
template <class V>
struct Bf16Weights {
  static constexpr std::int64_t kItemBytes = 2;
  static void LoadPair(const std::byte* from, V& even, V& odd) { LoadPairBf16(from, even, odd); }
};
template <class V>
struct F32Weights {
  static constexpr std::int64_t kItemBytes = 4;
  static void LoadPair(const std::byte* from, V& even, V& odd) { LoadPairF32(from, even, odd); }
};

// Adds blocks [first, last) of 32 elements to the partial sums of kRows x kOutputs outputs. `x` and `w` point at the
// first block; strides are in floats and in bytes. What lies as far from `ahead` is fetched into the cache meanwhile.
template <class V, template <class> class W, int kRows, int kOutputs>
inline void AddBlocks(const float* x, std::int64_t x_stride, const std::byte* w, std::int64_t w_stride,
                      const std::byte* ahead, std::int64_t blocks, V (&sums)[kRows][kOutputs][2]) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    V even[kOutputs], odd[kOutputs];
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) {
      const std::int64_t at = o * w_stride + b * kBlock * W<V>::kItemBytes;
      __builtin_prefetch(ahead + at);
      W<V>::LoadPair(w + at, even[o], odd[o]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      V x_even = V::Load(x + r * x_stride + b * kBlock);
      LoadOnce(x_even);
#pragma GCC unroll 8
      for (int o = 0; o < kOutputs; ++o) sums[r][o][0] = Fma(x_even, even[o], sums[r][o][0]);
      V x_odd = V::Load(x + r * x_stride + b * kBlock + 16);
      LoadOnce(x_odd);
#pragma GCC unroll 8
      for (int o = 0; o < kOutputs; ++o) sums[r][o][1] = Fma(x_odd, odd[o], sums[r][o][1]);
    }
  }
}

// Outputs [output, output + kOutputs) of rows [row, row + kRows).
template <class V, template <class> class W, int kRows, int kOutputs>
inline void Tile(const GemmProblem& p, std::int64_t row, std::int64_t output) {
  constexpr std::int64_t kItemBytes = W<V>::kItemBytes;
  const std::int64_t x_stride = PackedWidth(p.k), w_stride = p.k * kItemBytes;
  const std::int64_t blocks = p.k / kBlock, rest = p.k % kBlock;
  const float* x = p.packed_x + row * x_stride;
  const std::byte* w = p.w.data + output * w_stride;
  V sums[kRows][kOutputs][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) sums[r][o][0] = sums[r][o][1] = V::Zero();
  }
  AddBlocks<V, W, kRows, kOutputs>(x, x_stride, w, w_stride, w + kOutputs * w_stride, blocks, sums);
  if (rest > 0) {
    std::byte last[kOutputs][kBlock * kItemBytes] = {};
    for (int o = 0; o < kOutputs; ++o) {
      std::memcpy(last[o], w + (o * p.k + blocks * kBlock) * kItemBytes, static_cast<std::size_t>(rest * kItemBytes));
    }
    AddBlocks<V, W, kRows, kOutputs>(x + blocks * kBlock, x_stride, last[0], kBlock * kItemBytes, last[0], 1, sums);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) {
      float* y = p.y + (row + r) * p.y_stride + output + o;
      const float product = SumLanes(Add(sums[r][o][0], sums[r][o][1]));
      *y = p.accumulate ? *y + product : product;
    }
  }
}

template <class V, template <class> class W, int kRows>
inline void RowsOfOutputs(const GemmProblem& p, std::int64_t row, std::int64_t first, std::int64_t last) {
  std::int64_t output = first;
  for (; output + V::kTileOutputs <= last; output += V::kTileOutputs) {
    Tile<V, W, kRows, V::kTileOutputs>(p, row, output);
  }
  for (; output < last; ++output) Tile<V, W, kRows, 1>(p, row, output);
}

// Weight rows that stay in the second-level cache while every row of x meets them.
inline constexpr std::int64_t kCachedWeightBytes = 96 << 10;

template <class V, template <class> class W>
void GemmOf(const GemmProblem& p, std::int64_t first, std::int64_t last) {
  const std::int64_t fitting = kCachedWeightBytes / (p.k * W<V>::kItemBytes) / V::kTileOutputs * V::kTileOutputs;
  const std::int64_t step = fitting > V::kTileOutputs ? fitting : V::kTileOutputs;
  for (std::int64_t begin = first; begin < last; begin += step) {
    const std::int64_t end = begin + step < last ? begin + step : last;
    std::int64_t row = 0;
    for (; row + V::kTileRows <= p.rows; row += V::kTileRows) RowsOfOutputs<V, W, V::kTileRows>(p, row, begin, end);
    for (; row < p.rows; ++row) RowsOfOutputs<V, W, 1>(p, row, begin, end);
  }
}

template <class V>
void Gemm(const GemmProblem& p, std::int64_t first, std::int64_t last) {
  if (p.w.type == WeightType::kBf16) {
    GemmOf<V, Bf16Weights>(p, first, last);
  } else {
    GemmOf<V, F32Weights>(p, first, last);
  }
}

template <class V>
void PackRows(const float* x, std::int64_t rows, std::int64_t k, std::int64_t x_stride, float* packed) {
  const std::int64_t width = PackedWidth(k);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t at = 0; at < k; at += kBlock) {
      float block[kBlock] = {};
      const std::int64_t count = k - at < kBlock ? k - at : kBlock;
      std::memcpy(block, x + r * x_stride + at, static_cast<std::size_t>(count) * sizeof(float));
      V even, odd;
      LoadPairF32(reinterpret_cast<const std::byte*>(block), even, odd);
      even.Store(packed + r * width + at);
      odd.Store(packed + r * width + at + 16);
    }
  }
}

}  // namespace bascule::exact_internal
