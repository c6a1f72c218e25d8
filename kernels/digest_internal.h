// The parts of the digest: keys, the sums over words that are vectorised, and the digest of a growing set of runs.
//
// Thread-safety: thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/digest.h"

namespace bascule::digest_internal {

inline constexpr std::size_t kLanes = kDigestLanes;
inline constexpr std::size_t kWordBytes = 4;
inline constexpr std::size_t kChunkBytes = kDigestChunkBytes;
inline constexpr std::size_t kChunkWords = kChunkBytes / kWordBytes;
inline constexpr std::size_t kBatchChunks = 32;  // that are summed in one call
inline constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15;

using LaneSums = std::array<std::uint64_t, kLanes>;

constexpr std::uint64_t Mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// A(c, l) of digest.h.
constexpr std::uint64_t ChunkKey(std::uint64_t seed, std::uint64_t chunk) {
  return Mix(seed + (chunk + 1) * kGoldenGamma) | 1;
}

// B(j, l) of digest.h, where index = l * kChunkWords + j.
constexpr std::uint32_t WordKey(std::uint64_t index) {
  return static_cast<std::uint32_t>(Mix(0x42617363756c65 + (index + 1) * kGoldenGamma) >> 32) | 1;
}

// The word keys, a lane after the other. A vector of keys may begin at any word, so the table ends with a spare one.
struct WordKeys {
  static constexpr std::size_t kSpareWords = 16;
  alignas(64) std::array<std::uint32_t, kLanes * kChunkWords + kSpareWords> key{};
  constexpr const std::uint32_t* Lane(std::size_t lane) const { return key.data() + lane * kChunkWords; }
};
extern const WordKeys kWordKeys;

// One way to compute the sums over words. All ways agree bit for bit; the tests hold each against the scalar one.
struct Variant {
  std::string_view name;
  bool (*available)();
  // sums[l] += sum over i < word_count of B(first_word + i, l) * w(i), inside one chunk. `words` need not be aligned.
  void (*add_words)(std::size_t first_word, const std::byte* words, std::size_t word_count, LaneSums& sums);
  // sums[c] = the sums over all words of whole chunk c, for the `chunk_count` <= kBatchChunks chunks at `chunks`.
  void (*sum_chunks)(const std::byte* chunks, std::size_t chunk_count, LaneSums* sums);
};

std::span<const Variant> Variants();  // the scalar one first, the fastest last
const Variant& FastestVariant();      // of those this processor has

#if defined(__x86_64__)
extern const Variant kAvx2;    // vpmuludq: 4 products an instruction
extern const Variant kAvx512;  // 8 products
extern const Variant kAmx;     // byte planes through tile products; AVX-512 for what is not whole chunks
#endif

// The digest of runs that come one by one. Runs that follow each other within a chunk share its key.
class RunningDigest {
 public:
  explicit RunningDigest(const DigestKey& key, const Variant& variant = FastestVariant())
      : key_(key), variant_(variant) {}
  void Add(std::int64_t position, std::span<const std::byte> bytes);
  TensorDigest Total();

 private:
  void AddWholeChunks(std::uint64_t chunk, std::span<const std::byte> chunks);
  void Close(std::uint64_t chunk, const LaneSums& sums);
  void OpenChunk(std::uint64_t chunk);
  void AddInChunk(std::size_t within, std::span<const std::byte> bytes);
  void AddPartialWord(std::size_t within, std::span<const std::byte> bytes);

  const DigestKey& key_;
  const Variant& variant_;
  std::uint64_t chunk_ = 0;
  LaneSums sums_{};  // over the words of chunk_ so far
  TensorDigest closed_;
};

}  // namespace bascule::digest_internal
