// Reads runs of elements once, block by block, and makes of each block everything that is wanted of it: converted
// bytes, their digest, a compact copy. A block stays in this core's cache from the first of these to the last.
//
// Thread-safety: thread-compatible. An object holds its scratch blocks: it lives on a stack, for one box.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/box_runs_internal.h"
#include "kernels/digest_internal.h"
#include "kernels/pack.h"

namespace bascule {

class RunReader {
 public:
  // `payload` receives the converted elements, compact, in the order of the runs; null when they are only digested.
  RunReader(const DigestKey& key, Conversion conversion, int item_bytes, std::byte* payload);

  // Reads `count` elements that lie `logical_stride` apart from element `logical` of the logical tensor on. Of elements
  // [first, first + block) of them, take(first, block, scratch) returns where they lie side by side; it may put them
  // into `scratch`.
  template <typename Take>
  void Run(std::int64_t count, std::int64_t logical, std::int64_t logical_stride, Take&& take) {
    for (std::int64_t first = 0; first < count;) {
      const std::int64_t at = logical + first * logical_stride;
      const std::int64_t block = std::min(count - first, BlockElements(at));
      Read(take(first, block, scratch_.data()), block, at, logical_stride);
      first += block;
    }
  }
  // The same of elements that lie `source_stride` apart from `source` on.
  void Run(std::int64_t count, const std::byte* source, std::int64_t source_stride, std::int64_t logical,
           std::int64_t logical_stride);
  TensorDigest Total() { return digest_.Total(); }

  // Size of an element after `conversion`, which fits `item_bytes`.
  static int ConvertedBytes(Conversion conversion, int item_bytes);

 private:
  // As many chunks as the digest takes at once.
  static constexpr std::int64_t kBlockBytes = digest_internal::kBatchChunks * digest_internal::kChunkBytes;

  std::int64_t BlockElements(std::int64_t logical) const;
  void Read(const std::byte* items, std::int64_t count, std::int64_t logical, std::int64_t logical_stride);
  std::span<const std::byte> Converted(const std::byte* items, std::int64_t count);

  digest_internal::RunningDigest digest_;
  const Conversion conversion_;
  const int item_bytes_;
  const int converted_bytes_;  // of an element
  std::byte* payload_;
  alignas(64) std::array<std::byte, kBlockBytes> scratch_;
  alignas(64) std::array<std::byte, kBlockBytes> converted_;
};

}  // namespace bascule
