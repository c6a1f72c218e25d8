// Sixteen floats in two AVX2 registers; see f32x16_scalar_internal.h, which it matches bit for bit.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace bascule::avx2 {

inline __m256i LoadBits(const std::byte* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
inline __m256 EvenBf16(__m256i words) { return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)); }
inline __m256 OddBf16(__m256i words) {
  return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline __m256 WidenBf16(const std::byte* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return EvenBf16(_mm256_cvtepu16_epi32(halves));
}
struct F32x16 {
  static constexpr int kTileRows = 3;
  static constexpr int kTileOutputs = 1;
  __m256 low, high;

  static F32x16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F32x16 Of(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static F32x16 Load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static F32x16 LoadBf16(const std::byte* from) { return {WidenBf16(from), WidenBf16(from + 16)}; }
  void Store(float* to) const {
    _mm256_storeu_ps(to, low);
    _mm256_storeu_ps(to + 8, high);
  }
};

// The even (or odd) elements of sixteen floats.
inline __m256 EvenF32(__m256 a, __m256 b) {
  const __m256 mixed = _mm256_shuffle_ps(a, b, 0x88);
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
}
inline __m256 OddF32(__m256 a, __m256 b) {
  const __m256 mixed = _mm256_shuffle_ps(a, b, 0xdd);
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
}

// With 16 registers there is none to spare: see f32x16_avx512_internal.h.
inline void LoadOnce(F32x16&) {}

inline void LoadPairBf16(const std::byte* from, F32x16& even, F32x16& odd) {
  const __m256i first = LoadBits(from), second = LoadBits(from + 32);
  even = {EvenBf16(first), EvenBf16(second)};
  odd = {OddBf16(first), OddBf16(second)};
}
inline void LoadPairF32(const std::byte* from, F32x16& even, F32x16& odd) {
  const float* floats = reinterpret_cast<const float*>(from);
  const __m256 a = _mm256_loadu_ps(floats), b = _mm256_loadu_ps(floats + 8);
  const __m256 c = _mm256_loadu_ps(floats + 16), d = _mm256_loadu_ps(floats + 24);
  even = {EvenF32(a, b), EvenF32(c, d)};
  odd = {OddF32(a, b), OddF32(c, d)};
}

inline F32x16 Add(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline F32x16 Sub(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline F32x16 Mul(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline F32x16 Div(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline F32x16 Max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline F32x16 Min(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline F32x16 ZeroWhereLess(F32x16 a, F32x16 test, F32x16 bound) {
  return {_mm256_andnot_ps(_mm256_cmp_ps(test.low, bound.low, _CMP_LT_OQ), a.low),
          _mm256_andnot_ps(_mm256_cmp_ps(test.high, bound.high, _CMP_LT_OQ), a.high)};
}
inline F32x16 FirstLanes(F32x16 a, int count, float filler) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 keep_low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane));
  const __m256 keep_high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), lane));
  const __m256 fill = _mm256_set1_ps(filler);
  return {_mm256_blendv_ps(fill, a.low, keep_low), _mm256_blendv_ps(fill, a.high, keep_high)};
}
inline __m256 PowerOfTwoHalf(__m256 v) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(v), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f800000)));
}
inline F32x16 PowerOfTwo(F32x16 a) { return {PowerOfTwoHalf(a.low), PowerOfTwoHalf(a.high)}; }

inline float SumLanes(F32x16 a) {
  const __m256 by8 = _mm256_add_ps(a.low, a.high);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}
inline float MaxLane(F32x16 a) {
  const __m256 by8 = _mm256_max_ps(a.low, a.high);
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

}  // namespace bascule::avx2
