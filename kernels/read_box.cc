#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "base/status.h"
#include "kernels/box_runs_internal.h"
#include "kernels/cast.h"
#include "kernels/digest_internal.h"
#include "kernels/read_box_internal.h"
#include "kernels/strided_internal.h"

namespace bascule::read_box_internal {
namespace {

// A block is read from memory once and then stays in the first-level cache while it is digested and copied.
constexpr std::int64_t kBlockBytes = 16 << 10;

class BoxReader {
 public:
  BoxReader(const DigestKey& key, Conversion conversion, int item_bytes, std::byte* payload)
      : digest_(key),
        conversion_(conversion),
        item_bytes_(item_bytes),
        wire_bytes_(ConvertedBytes(conversion, item_bytes)),
        payload_(payload) {}

  // `count` elements that lie `source_stride` apart in memory and `logical_stride` apart in the logical tensor.
  void Run(std::int64_t count, const std::byte* source, std::int64_t source_stride, std::int64_t logical,
           std::int64_t logical_stride) {
    const std::int64_t block_elements = kBlockBytes / std::max(item_bytes_, wire_bytes_);
    while (count > 0) {
      const std::int64_t block = std::min(count, block_elements);
      Block(Converted(Gathered(source, source_stride, block), block), logical, logical_stride);
      source += block * source_stride * item_bytes_;
      logical += block * logical_stride;
      count -= block;
    }
  }
  TensorDigest Total() { return digest_.Total(); }

 private:
  const std::byte* Gathered(const std::byte* source, std::int64_t stride, std::int64_t count) {
    if (stride == 1) return source;
    strided_internal::CopyItems(item_bytes_, count, source, stride, gathered_.data(), 1);
    return gathered_.data();
  }
  std::span<const std::byte> Converted(const std::byte* items, std::int64_t count) {
    const std::span from(items, static_cast<std::size_t>(count * item_bytes_));
    if (conversion_ == Conversion::kNone) return from;
    const std::span to(converted_.data(), static_cast<std::size_t>(count * wire_bytes_));
    if (conversion_ == Conversion::kF32ToBf16) {
      CastF32ToBf16OnHost(from, to);
    } else {
      CastBf16ToF32OnHost(from, to);
    }
    return to;
  }
  void Block(std::span<const std::byte> items, std::int64_t logical, std::int64_t logical_stride) {
    const auto piece = logical_stride == 1 ? items.size() : static_cast<std::size_t>(wire_bytes_);
    for (std::size_t at = 0; at < items.size(); at += piece, logical += logical_stride) {
      digest_.Add(logical * wire_bytes_, items.subspan(at, piece));
    }
    if (payload_ == nullptr) return;
    std::memcpy(payload_, items.data(), items.size());
    payload_ += items.size();
  }

  digest_internal::RunningDigest digest_;
  const Conversion conversion_;
  const int item_bytes_;
  const int wire_bytes_;  // of a converted element
  std::byte* payload_;
  alignas(64) std::array<std::byte, kBlockBytes> gathered_;
  alignas(64) std::array<std::byte, kBlockBytes> converted_;
};

}  // namespace

int ConvertedBytes(Conversion conversion, int item_bytes) {
  switch (conversion) {
    case Conversion::kNone:
      return item_bytes;
    case Conversion::kF32ToBf16:
      CHECK(item_bytes == 4);
      return 2;
    case Conversion::kBf16ToF32:
      CHECK(item_bytes == 2);
      return 4;
  }
  return item_bytes;
}

TensorDigest ReadBox(const DigestKey& key, const BoxShape& shape, Conversion conversion, int item_bytes,
                     const std::byte* base, const BoxPlace& source, const BoxPlace& logical, std::byte* payload) {
  CHECK(item_bytes > 0 && item_bytes <= kBlockBytes);
  const BoxRuns<2> runs(shape, {source, logical});
  BoxReader reader(key, conversion, item_bytes, payload);
  runs.ForEach([&](const BoxRuns<2>::Offsets& first) {
    reader.Run(runs.run_elements(), base + first[0] * item_bytes, runs.run_stride(0), first[1], runs.run_stride(1));
  });
  return reader.Total();
}

}  // namespace bascule::read_box_internal
