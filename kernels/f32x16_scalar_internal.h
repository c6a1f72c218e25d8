// Sixteen floats in plain C++: the reference that the vector forms match bit for bit.
//
// The three F32x16 types have the same functions; the kernels of *_body_internal.h are written once over them. Each is
// used by one translation unit, built for its instruction set, and so is every instance of those templates.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bascule::scalar {

inline float OfBf16(const std::byte* from) {
  std::uint16_t high;
  std::memcpy(&high, from, sizeof high);
  const std::uint32_t bits = std::uint32_t{high} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct F32x16 {
  // Shape of the product's register tile.
  static constexpr int kTileRows = 4;
  static constexpr int kTileOutputs = 1;
  float lane[16];

  static F32x16 Zero() { return Of(0); }
  static F32x16 Of(float value) {
    F32x16 v;
    for (float& lane : v.lane) lane = value;
    return v;
  }
  static F32x16 Load(const float* from) {
    F32x16 v;
    std::memcpy(v.lane, from, sizeof v.lane);
    return v;
  }
  static F32x16 LoadBf16(const std::byte* from) {
    F32x16 v;
    for (int i = 0; i < 16; ++i) v.lane[i] = OfBf16(from + 2 * i);
    return v;
  }
  void Store(float* to) const { std::memcpy(to, lane, sizeof lane); }
};

// The even and the odd elements of 32.
// See f32x16_avx512_internal.h: nothing to do here.
inline void LoadOnce(F32x16&) {}

inline void LoadPairBf16(const std::byte* from, F32x16& even, F32x16& odd) {
  for (int i = 0; i < 16; ++i) even.lane[i] = OfBf16(from + 4 * i), odd.lane[i] = OfBf16(from + 4 * i + 2);
}
inline void LoadPairF32(const std::byte* from, F32x16& even, F32x16& odd) {
  for (int i = 0; i < 16; ++i) {
    std::memcpy(&even.lane[i], from + 8 * i, sizeof(float));
    std::memcpy(&odd.lane[i], from + 8 * i + 4, sizeof(float));
  }
}

inline F32x16 Add(F32x16 a, const F32x16& b) {
  for (int i = 0; i < 16; ++i) a.lane[i] += b.lane[i];
  return a;
}
inline F32x16 Sub(F32x16 a, const F32x16& b) {
  for (int i = 0; i < 16; ++i) a.lane[i] -= b.lane[i];
  return a;
}
inline F32x16 Mul(F32x16 a, const F32x16& b) {
  for (int i = 0; i < 16; ++i) a.lane[i] *= b.lane[i];
  return a;
}
inline F32x16 Div(F32x16 a, const F32x16& b) {
  for (int i = 0; i < 16; ++i) a.lane[i] /= b.lane[i];
  return a;
}
// a * b + c, rounded once.
inline F32x16 Fma(F32x16 a, const F32x16& b, const F32x16& c) {
  for (int i = 0; i < 16; ++i) a.lane[i] = std::fma(a.lane[i], b.lane[i], c.lane[i]);
  return a;
}
// The second where they compare unordered, as the vector instructions do.
inline F32x16 Max(F32x16 a, const F32x16& b) {
  for (int i = 0; i < 16; ++i) a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
inline F32x16 Min(F32x16 a, const F32x16& b) {
  for (int i = 0; i < 16; ++i) a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
// +0 in the lanes where `test` is less than `bound`, `a` elsewhere.
inline F32x16 ZeroWhereLess(F32x16 a, const F32x16& test, const F32x16& bound) {
  for (int i = 0; i < 16; ++i) a.lane[i] = test.lane[i] < bound.lane[i] ? 0.0f : a.lane[i];
  return a;
}
// The first `count` lanes of `a`, `filler` in the others.
inline F32x16 FirstLanes(F32x16 a, int count, float filler) {
  for (int i = count; i < 16; ++i) a.lane[i] = filler;
  return a;
}
// 2^n in each lane, where the lane's low bits hold n.
inline F32x16 PowerOfTwo(F32x16 a) {
  for (float& lane : a.lane) {
    std::uint32_t bits;
    std::memcpy(&bits, &lane, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    std::memcpy(&lane, &bits, sizeof bits);
  }
  return a;
}
// Lane i with lane i + n, for n = 8, 4, 2, 1.
inline float SumLanes(F32x16 a) {
  for (int n = 8; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) a.lane[i] += a.lane[i + n];
  }
  return a.lane[0];
}
inline float MaxLane(F32x16 a) {
  for (int n = 8; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) a.lane[i] = a.lane[i] > a.lane[i + n] ? a.lane[i] : a.lane[i + n];
  }
  return a.lane[0];
}

}  // namespace bascule::scalar
