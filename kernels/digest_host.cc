#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/digest.h"
#include "kernels/digest_internal.h"
#include "kernels/run_reader_internal.h"

namespace bascule {
namespace digest_internal {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as the processor stores them");

constexpr WordKeys MakeWordKeys() {
  WordKeys keys;
  for (std::size_t i = 0; i < kLanes * kChunkWords; ++i) keys.key[i] = WordKey(i);
  return keys;
}

void AddWordsScalar(std::size_t first_word, const std::byte* words, std::size_t word_count, LaneSums& sums) {
  for (std::size_t i = 0; i < word_count; ++i) {
    std::uint32_t word;
    std::memcpy(&word, words + i * kWordBytes, kWordBytes);
    for (std::size_t l = 0; l < kLanes; ++l) sums[l] += std::uint64_t{kWordKeys.Lane(l)[first_word + i]} * word;
  }
}

void SumChunksScalar(const std::byte* chunks, std::size_t chunk_count, LaneSums* sums) {
  for (std::size_t c = 0; c < chunk_count; ++c) {
    sums[c] = {};
    AddWordsScalar(0, chunks + c * kChunkBytes, kChunkWords, sums[c]);
  }
}

constexpr Variant kScalar = {"scalar", [] { return true; }, AddWordsScalar, SumChunksScalar};

}  // namespace

constinit const WordKeys kWordKeys = MakeWordKeys();

std::span<const Variant> Variants() {
#if defined(__x86_64__)
  static const Variant variants[] = {kScalar, kAvx2, kAvx512, kAmx};
#else
  static const Variant variants[] = {kScalar};
#endif
  return variants;
}

const Variant& FastestVariant() {
  static const Variant& fastest =
      *std::find_if(Variants().rbegin(), Variants().rend(), [](const Variant& variant) { return variant.available(); });
  return fastest;
}

void RunningDigest::Add(std::int64_t position, std::span<const std::byte> bytes) {
  auto at = static_cast<std::uint64_t>(position);
  while (!bytes.empty()) {
    const std::size_t within = at % kChunkBytes;
    const bool whole = within == 0 && bytes.size() >= kChunkBytes;
    const std::size_t piece = whole ? std::min(bytes.size() / kChunkBytes, kBatchChunks) * kChunkBytes
                                    : std::min(bytes.size(), kChunkBytes - within);
    if (whole) {
      AddWholeChunks(at / kChunkBytes, bytes.first(piece));
    } else {
      OpenChunk(at / kChunkBytes);
      AddInChunk(within, bytes.first(piece));
    }
    bytes = bytes.subspan(piece);
    at += piece;
  }
}

TensorDigest RunningDigest::Total() {
  OpenChunk(chunk_ + 1);
  return closed_;
}

void RunningDigest::AddWholeChunks(std::uint64_t chunk, std::span<const std::byte> chunks) {
  std::array<LaneSums, kBatchChunks> sums;
  const std::size_t chunk_count = chunks.size() / kChunkBytes;
  variant_.sum_chunks(chunks.data(), chunk_count, sums.data());
  for (std::size_t c = 0; c < chunk_count; ++c) Close(chunk + c, sums[c]);
}

void RunningDigest::Close(std::uint64_t chunk, const LaneSums& sums) {
  for (std::size_t l = 0; l < kLanes; ++l) closed_.lane[l] += ChunkKey(key_.seed[l], chunk) * sums[l];
}

void RunningDigest::OpenChunk(std::uint64_t chunk) {
  if (chunk == chunk_) return;
  Close(chunk_, sums_);
  sums_ = {};
  chunk_ = chunk;
}

void RunningDigest::AddInChunk(std::size_t within, std::span<const std::byte> bytes) {
  if (const std::size_t into_word = within % kWordBytes; into_word != 0) {
    const std::size_t head = std::min(bytes.size(), kWordBytes - into_word);
    AddPartialWord(within, bytes.first(head));
    within += head;
    bytes = bytes.subspan(head);
  }
  const std::size_t word_count = bytes.size() / kWordBytes;
  if (word_count > 0) variant_.add_words(within / kWordBytes, bytes.data(), word_count, sums_);
  const std::span<const std::byte> tail = bytes.subspan(word_count * kWordBytes);
  if (!tail.empty()) AddPartialWord(within + word_count * kWordBytes, tail);
}

void RunningDigest::AddPartialWord(std::size_t within, std::span<const std::byte> bytes) {
  std::byte word[kWordBytes] = {};
  std::copy(bytes.begin(), bytes.end(), word + within % kWordBytes);
  AddWordsScalar(within / kWordBytes, word, 1, sums_);
}

}  // namespace digest_internal

std::string TensorDigest::ToHex() const {
  std::string hex;
  for (const std::uint64_t sum : lane) hex += fmt::format("{:016x}", sum);
  return hex;
}

TensorDigest DigestRunOnHost(const DigestKey& key, std::int64_t position, std::span<const std::byte> bytes) {
  digest_internal::RunningDigest digest(key);
  digest.Add(position, bytes);
  return digest.Total();
}

TensorDigest DigestBoxOnHost(const DigestKey& key, const BoxShape& shape, int item_bytes, const std::byte* base,
                             const BoxPlace& memory, const BoxPlace& logical) {
  const BoxRuns<2> runs(shape, {memory, logical});
  RunReader reader(key, Conversion::kNone, item_bytes, nullptr);
  runs.ForEach([&](const BoxRuns<2>::Offsets& first) {
    reader.Run(runs.run_elements(), base + first[0] * item_bytes, runs.run_stride(0), first[1], runs.run_stride(1));
  });
  return reader.Total();
}

}  // namespace bascule
