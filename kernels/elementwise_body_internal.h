// Exponentials, sums, normalisation and the gated activation over any F32x16; see gemm_body_internal.h for the rules.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/exact_internal.h"

namespace bascule::exact_internal {

// Lanes beyond `count` hold `filler`.
template <class V>
inline V LoadFirst(const float* from, std::int64_t count, float filler) {
  if (count >= 16) return V::Load(from);
  float lanes[16] = {};
  std::memcpy(lanes, from, static_cast<std::size_t>(count) * sizeof(float));
  return FirstLanes(V::Load(lanes), static_cast<int>(count), filler);
}

template <class V>
inline void StoreFirst(const V& v, std::int64_t count, float* to) {
  if (count >= 16) return v.Store(to);
  float lanes[16];
  v.Store(lanes);
  std::memcpy(to, lanes, static_cast<std::size_t>(count) * sizeof(float));
}

// e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln(2) / 2; the polynomial is that of Cephes' expf. Exactly 0 below
// kExpLowest; e^kExpHighest above that.
inline constexpr float kExpLowest = -87.0f;
inline constexpr float kExpHighest = 88.0f;

template <class V>
constexpr V Exp(const V& x) {
  constexpr float kLowBitsHoldInteger = 12582912.0f;  // 1.5 * 2^23
  const V bounded = Min(Max(x, V::Of(kExpLowest)), V::Of(kExpHighest));
  const V shifted = Fma(bounded, V::Of(1.44269504088896341f), V::Of(kLowBitsHoldInteger));
  const V n = Sub(shifted, V::Of(kLowBitsHoldInteger));
  V r = Fma(n, V::Of(-0.693359375f), bounded);
  r = Fma(n, V::Of(2.12194440e-4f), r);
  V p = V::Of(1.9875691500e-4f);
  p = Fma(p, r, V::Of(1.3981999507e-3f));
  p = Fma(p, r, V::Of(8.3334519073e-3f));
  p = Fma(p, r, V::Of(4.1665795894e-2f));
  p = Fma(p, r, V::Of(1.6666665459e-1f));
  p = Fma(p, r, V::Of(5.0000001201e-1f));
  p = Add(Fma(p, Mul(r, r), r), V::Of(1.0f));
  return ZeroWhereLess(Mul(p, PowerOfTwo(shifted)), x, V::Of(kExpLowest));
}

// `count` <= 16 weights from element `first` on, then zeros.
template <class V>
inline V LoadWeights(WeightView w, std::int64_t first, std::int64_t count) {
  std::byte raw[64] = {};
  std::memcpy(raw, w.data + first * w.item_bytes(), static_cast<std::size_t>(count * w.item_bytes()));
  return w.type == WeightType::kBf16 ? V::LoadBf16(raw) : V::Load(reinterpret_cast<const float*>(raw));
}

template <class V>
void AddTo(WeightView x, std::int64_t size, float* y) {
  for (std::int64_t i = 0; i < size; i += 16) {
    const std::int64_t count = size - i < 16 ? size - i : 16;
    StoreFirst(Add(LoadFirst<V>(y + i, count, 0), LoadWeights<V>(x, i, count)), count, y + i);
  }
}

template <class V>
void RmsNorm(const float* x, std::int64_t size, WeightView w, float eps, float* y) {
  V squares = V::Zero();
  for (std::int64_t i = 0; i < size; i += 16) {
    const V v = LoadFirst<V>(x + i, size - i, 0);
    squares = Fma(v, v, squares);
  }
  const V scale = V::Of(1.0f / std::sqrt(SumLanes(squares) / static_cast<float>(size) + eps));
  for (std::int64_t i = 0; i < size; i += 16) {
    const std::int64_t count = size - i < 16 ? size - i : 16;
    StoreFirst(Mul(Mul(LoadFirst<V>(x + i, count, 0), scale), LoadWeights<V>(w, i, count)), count, y + i);
  }
}

template <class V>
void Swiglu(const float* gate, const float* up, std::int64_t size, float* y) {
  for (std::int64_t i = 0; i < size; i += 16) {
    const V g = LoadFirst<V>(gate + i, size - i, 0);
    const V u = LoadFirst<V>(up + i, size - i, 0);
    const V silu = Div(g, Add(V::Of(1.0f), Exp(Sub(V::Zero(), g))));
    StoreFirst(Mul(silu, u), size - i, y + i);
  }
}

template <class V>
float Largest(const float* x, std::int64_t size) {
  constexpr float kLowest = -__builtin_inff();
  V largest = V::Of(kLowest);
  for (std::int64_t i = 0; i < size; i += 16) largest = Max(largest, LoadFirst<V>(x + i, size - i, kLowest));
  return MaxLane(largest);
}

template <class V>
float Exponentials(const float* x, std::int64_t size, float shift, float divisor, float* y) {
  V sum = V::Zero();
  for (std::int64_t i = 0; i < size; i += 16) {
    const V scaled = Div(Sub(LoadFirst<V>(x + i, size - i, 0), V::Of(shift)), V::Of(divisor));
    const std::int64_t count = size - i < 16 ? size - i : 16;
    const V e = FirstLanes(Exp(scaled), static_cast<int>(count), 0);
    StoreFirst(e, count, y + i);
    sum = Add(sum, e);
  }
  return SumLanes(sum);
}

}  // namespace bascule::exact_internal
