#include <immintrin.h>

#include <algorithm>

#include "kernels/digest_internal.h"

namespace bascule::digest_internal {
namespace {

constexpr std::size_t kVectorWords = 8;

// A mask of the first n words begins at kMaskWords + kVectorWords - n.
alignas(32) constexpr std::int32_t kMaskWords[2 * kVectorWords] = {-1, -1, -1, -1, -1, -1, -1, -1};

[[gnu::target("avx2")]] std::uint64_t SumOf(__m256i total) {
  alignas(32) std::array<std::uint64_t, 4> part;
  _mm256_store_si256(reinterpret_cast<__m256i*>(part.data()), total);
  return part[0] + part[1] + part[2] + part[3];
}

// The same arrangement as in digest_avx512.cc, eight words at a time.
template <std::size_t kChunks>
[[gnu::target("avx2")]] void AddVectors(std::size_t first_word, const std::byte* words, std::size_t word_count,
                                        LaneSums* sums) {
  __m256i total[kChunks][kLanes];
  for (auto& chunk_total : total) {
    for (__m256i& lane_total : chunk_total) lane_total = _mm256_setzero_si256();
  }
  for (std::size_t i = 0; i < word_count; i += kVectorWords) {
    const std::int32_t* mask_words = kMaskWords + kVectorWords - std::min(kVectorWords, word_count - i);
    const __m256i mask = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(mask_words));
    __m256i even[kChunks];
    __m256i odd[kChunks];
    for (std::size_t c = 0; c < kChunks; ++c) {
      if constexpr (kChunks > 1) _mm_prefetch(words + (kChunks + c) * kChunkBytes + i * kWordBytes, _MM_HINT_T0);
      even[c] = _mm256_maskload_epi32(reinterpret_cast<const int*>(words + c * kChunkBytes + i * kWordBytes), mask);
      odd[c] = _mm256_srli_epi64(even[c], 32);
    }
    for (std::size_t l = 0; l < kLanes; ++l) {
      const std::uint32_t* keys = kWordKeys.Lane(l) + first_word + i;
      const __m256i even_keys = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys));
      const __m256i odd_keys = _mm256_srli_epi64(even_keys, 32);
      for (std::size_t c = 0; c < kChunks; ++c) {
        total[c][l] = _mm256_add_epi64(total[c][l], _mm256_mul_epu32(even[c], even_keys));
        total[c][l] = _mm256_add_epi64(total[c][l], _mm256_mul_epu32(odd[c], odd_keys));
      }
    }
  }
  for (std::size_t c = 0; c < kChunks; ++c) {
    for (std::size_t l = 0; l < kLanes; ++l) sums[c][l] += SumOf(total[c][l]);
  }
}

void AddWords(std::size_t first_word, const std::byte* words, std::size_t word_count, LaneSums& sums) {
  AddVectors<1>(first_word, words, word_count, &sums);
}

void SumChunks(const std::byte* chunks, std::size_t chunk_count, LaneSums* sums) {
  std::fill_n(sums, chunk_count, LaneSums{});
  std::size_t c = 0;
  for (; c + 2 <= chunk_count; c += 2) AddVectors<2>(0, chunks + c * kChunkBytes, kChunkWords, sums + c);
  if (c < chunk_count) AddVectors<1>(0, chunks + c * kChunkBytes, kChunkWords, sums + c);
}

}  // namespace

constinit const Variant kAvx2 = {"avx2", [] { return __builtin_cpu_supports("avx2") != 0; }, AddWords, SumChunks};

}  // namespace bascule::digest_internal
