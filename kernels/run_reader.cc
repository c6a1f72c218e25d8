#include "kernels/run_reader_internal.h"

#include <cstring>

#include "base/status.h"
#include "kernels/cast.h"
#include "kernels/copy_items_internal.h"

namespace bascule {

int RunReader::ConvertedBytes(Conversion conversion, int item_bytes) {
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
  CheckFailed(__FILE__, __LINE__, "a known conversion");
}

// The scratch blocks stay as they are until they are written: clearing them would cost as much as a small box.
RunReader::RunReader(const DigestKey& key, Conversion conversion, int item_bytes, std::byte* payload)
    : digest_(key),
      conversion_(conversion),
      item_bytes_(item_bytes),
      converted_bytes_(ConvertedBytes(conversion, item_bytes)),
      payload_(payload) {
  CHECK(item_bytes > 0 && item_bytes <= kDigestChunkBytes);
}

// The first block of a run ends with a chunk of the logical tensor, so that the ones after it are whole chunks.
std::int64_t RunReader::BlockElements(std::int64_t logical) const {
  const std::int64_t into_chunk = logical * converted_bytes_ % kDigestChunkBytes;
  return (kBlockBytes - into_chunk) / std::max(item_bytes_, converted_bytes_);
}

void RunReader::Run(std::int64_t count, const std::byte* source, std::int64_t source_stride, std::int64_t logical,
                    std::int64_t logical_stride) {
  Run(count, logical, logical_stride, [&](std::int64_t first, std::int64_t block, std::byte* scratch) {
    const std::byte* const items = source + first * source_stride * item_bytes_;
    if (source_stride == 1) return items;
    copy_items_internal::CopyItems(item_bytes_, block, items, source_stride, scratch, 1);
    return static_cast<const std::byte*>(scratch);
  });
}

void RunReader::Read(const std::byte* items, std::int64_t count, std::int64_t logical, std::int64_t logical_stride) {
  const std::span<const std::byte> block = Converted(items, count);
  const std::size_t piece = logical_stride == 1 ? block.size() : static_cast<std::size_t>(converted_bytes_);
  for (std::size_t at = 0; at < block.size(); at += piece, logical += logical_stride) {
    digest_.Add(logical * converted_bytes_, block.subspan(at, piece));
  }
  if (payload_ == nullptr) return;
  std::memcpy(payload_, block.data(), block.size());
  payload_ += block.size();
}

std::span<const std::byte> RunReader::Converted(const std::byte* items, std::int64_t count) {
  const std::span from(items, static_cast<std::size_t>(count * item_bytes_));
  if (conversion_ == Conversion::kNone) return from;
  const std::span to(converted_.data(), static_cast<std::size_t>(count * converted_bytes_));
  if (conversion_ == Conversion::kF32ToBf16) {
    CastF32ToBf16OnHost(from, to);
  } else {
    CastBf16ToF32OnHost(from, to);
  }
  return to;
}

}  // namespace bascule
