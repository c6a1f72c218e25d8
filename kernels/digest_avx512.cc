#include <immintrin.h>

#include <algorithm>
#include <numeric>

#include "kernels/digest_internal.h"

namespace bascule::digest_internal {
namespace {

constexpr std::size_t kVectorWords = 16;

[[gnu::target("avx512f")]] std::uint64_t SumOf(__m512i total) {
  alignas(64) std::array<std::uint64_t, 8> part;
  _mm512_store_si512(part.data(), total);
  return std::accumulate(part.begin(), part.end(), std::uint64_t{0});
}

// sums[c] += the sums over `word_count` words of each of kChunks chunks, kChunkBytes apart. vpmuludq multiplies the
// lower half of each 64-bit element, so even words are multiplied as they lie, and odd words after a shift of both: a
// load of the keys one word further on would cross a cache line each time. Words masked off are zero and add nothing.
template <std::size_t kChunks>
[[gnu::target("avx512f")]] void AddVectors(std::size_t first_word, const std::byte* words, std::size_t word_count,
                                           LaneSums* sums) {
  __m512i total[kChunks][kLanes];
  for (auto& chunk_total : total) {
    for (__m512i& lane_total : chunk_total) lane_total = _mm512_setzero_si512();
  }
  for (std::size_t i = 0; i < word_count; i += kVectorWords) {
    const auto mask = static_cast<__mmask16>(0xffffu >> (kVectorWords - std::min(kVectorWords, word_count - i)));
    __m512i even[kChunks];
    __m512i odd[kChunks];
    for (std::size_t c = 0; c < kChunks; ++c) {
      if constexpr (kChunks > 1) _mm_prefetch(words + (kChunks + c) * kChunkBytes + i * kWordBytes, _MM_HINT_T0);
      even[c] = _mm512_maskz_loadu_epi32(mask, words + c * kChunkBytes + i * kWordBytes);
      odd[c] = _mm512_srli_epi64(even[c], 32);
    }
    for (std::size_t l = 0; l < kLanes; ++l) {
      const std::uint32_t* keys = kWordKeys.Lane(l) + first_word + i;
      const __m512i even_keys = _mm512_loadu_si512(keys);
      const __m512i odd_keys = _mm512_srli_epi64(even_keys, 32);
      for (std::size_t c = 0; c < kChunks; ++c) {
        total[c][l] = _mm512_add_epi64(total[c][l], _mm512_mul_epu32(even[c], even_keys));
        total[c][l] = _mm512_add_epi64(total[c][l], _mm512_mul_epu32(odd[c], odd_keys));
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

// Two chunks at once: each key is loaded once for both. The next two are asked for meanwhile, since a chunk is a page,
// and processors that fetch ahead by themselves stop at its end.
void SumChunks(const std::byte* chunks, std::size_t chunk_count, LaneSums* sums) {
  std::fill_n(sums, chunk_count, LaneSums{});
  std::size_t c = 0;
  for (; c + 2 <= chunk_count; c += 2) AddVectors<2>(0, chunks + c * kChunkBytes, kChunkWords, sums + c);
  if (c < chunk_count) AddVectors<1>(0, chunks + c * kChunkBytes, kChunkWords, sums + c);
}

}  // namespace

constinit const Variant kAvx512 = {"avx512", [] { return __builtin_cpu_supports("avx512f") != 0; }, AddWords,
                                   SumChunks};

}  // namespace bascule::digest_internal
