// One of the sixteen lanes of kernels/f32x16_scalar_internal.h, held by one thread: sixteen neighbours of a warp are
// the vector, and a kernel that keeps the order of operations per lane and the tree over lanes gives the host's bits.
//
// Thread-safety: a value; SumSixteen is for sixteen threads together.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cast.h"
#include "kernels/cuda/launch.h"
#include "kernels/elementwise_body_internal.h"

namespace bascule::cuda_internal {

struct Lane {
  float value;
  static constexpr Lane Of(float one) { return {one}; }
};

constexpr Lane Add(Lane a, Lane b) { return {a.value + b.value}; }
constexpr Lane Sub(Lane a, Lane b) { return {a.value - b.value}; }
constexpr Lane Mul(Lane a, Lane b) { return {a.value * b.value}; }
constexpr Lane Div(Lane a, Lane b) { return {a.value / b.value}; }
constexpr Lane Fma(Lane a, Lane b, Lane c) { return {__builtin_fmaf(a.value, b.value, c.value)}; }
constexpr Lane Max(Lane a, Lane b) { return {a.value > b.value ? a.value : b.value}; }
constexpr Lane Min(Lane a, Lane b) { return {a.value < b.value ? a.value : b.value}; }
constexpr Lane ZeroWhereLess(Lane a, Lane test, Lane bound) { return {test.value < bound.value ? 0.0f : a.value}; }
constexpr Lane PowerOfTwo(Lane a) {
  return {std::bit_cast<float>((std::bit_cast<std::uint32_t>(a.value) << 23) + 0x3f800000u)};
}

constexpr float Exp(float x) { return exact_internal::Exp(Lane{x}).value; }

__device__ inline float WeightAt(WeightView w, std::int64_t index) {
  if (w.type == WeightType::kF32) return reinterpret_cast<const float*>(w.data)[index];
  return std::bit_cast<float>(F32BitsOfBf16Bits(reinterpret_cast<const std::uint16_t*>(w.data)[index]));
}

// Lane i with lane i + n, for n = 8, 4, 2, 1: the result is that of the first of sixteen neighbours, which `mask` names
// (perhaps among others).
__device__ inline float SumSixteen(unsigned mask, float lane) {
  for (int n = 8; n > 0; n /= 2) lane = lane + __shfl_down_sync(mask, lane, n, 16);
  return lane;
}

}  // namespace bascule::cuda_internal
