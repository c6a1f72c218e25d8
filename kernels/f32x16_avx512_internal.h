// Sixteen floats in one AVX-512 register; see f32x16_scalar_internal.h, which it matches bit for bit.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace bascule::avx512 {

struct F32x16 {
  static constexpr int kTileRows = 4;
  static constexpr int kTileOutputs = 3;
  __m512 v;

  static F32x16 Zero() { return {_mm512_setzero_ps()}; }
  static F32x16 Of(float value) { return {_mm512_set1_ps(value)}; }
  static F32x16 Load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static F32x16 LoadBf16(const std::byte* from) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
  }
  void Store(float* to) const { _mm512_storeu_ps(to, v); }
};

// Makes several uses of a loaded value one load: the compiler would fold a load into each.
inline void LoadOnce(F32x16& a) { asm("" : "+v"(a.v)); }

inline void LoadPairBf16(const std::byte* from, F32x16& even, F32x16& odd) {
  const __m512i words = _mm512_loadu_si512(from);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline void LoadPairF32(const std::byte* from, F32x16& even, F32x16& odd) {
  const __m512 low = _mm512_loadu_ps(from);
  const __m512 high = _mm512_loadu_ps(from + 64);
  const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  even.v = _mm512_permutex2var_ps(low, evens, high);
  odd.v = _mm512_permutex2var_ps(low, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), high);
}

inline F32x16 Add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 Sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 Mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 Div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32x16 Max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32x16 Min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F32x16 ZeroWhereLess(F32x16 a, F32x16 test, F32x16 bound) {
  return {_mm512_mask_mov_ps(a.v, _mm512_cmp_ps_mask(test.v, bound.v, _CMP_LT_OQ), _mm512_setzero_ps())};
}
inline F32x16 FirstLanes(F32x16 a, int count, float filler) {
  const auto keep = static_cast<__mmask16>((1u << count) - 1);
  return {_mm512_mask_mov_ps(_mm512_set1_ps(filler), keep, a.v)};
}
inline F32x16 PowerOfTwo(F32x16 a) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(a.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(0x3f800000)))};
}

inline __m256 HighHalf(__m512 v) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)); }
inline float SumLanes(F32x16 a) {
  const __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), HighHalf(a.v));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}
inline float MaxLane(F32x16 a) {
  const __m256 by8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), HighHalf(a.v));
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

}  // namespace bascule::avx512
