#include <cstdint>
#include <cstring>

#include "kernels/copy_items_internal.h"
#include "kernels/isa.h"

namespace bascule::copy_items_internal {
namespace {

// A cache line, wherever it begins: one load and one store where the processor has vectors of that size.
using Line [[gnu::vector_size(64), gnu::aligned(1), gnu::may_alias]] = std::uint64_t;

// memcpy for a large target that is cold now and read soon. Past some size memcpy itself writes around the cache; and a
// plain store waits until its line is there, so lines are asked for well ahead. The source may lie in another core's
// cache, which the hardware fetches from line by line: it is asked for ahead as well.
[[gnu::always_inline]] inline void CopyLinesIntoCache(std::byte* to, const std::byte* from, std::size_t size) {
  constexpr std::size_t kAheadBytes = 4096;
  constexpr std::size_t kSourceAheadBytes = 2048;
  std::size_t at = 0;
  for (; at + sizeof(Line) <= size; at += sizeof(Line)) {
    __builtin_prefetch(to + at + kAheadBytes, /*rw=*/1);
    __builtin_prefetch(from + at + kSourceAheadBytes);
    *reinterpret_cast<Line*>(to + at) = *reinterpret_cast<const Line*>(from + at);
  }
  std::memcpy(to + at, from + at, size - at);
}

#if defined(__x86_64__)
// PREFETCHW does nothing on a processor without it.
[[gnu::target("prfchw")]] void CopyIntoCacheBaseline(std::byte* to, const std::byte* from, std::size_t size) {
  CopyLinesIntoCache(to, from, size);
}
[[gnu::target("prfchw,avx512f")]] void CopyIntoCacheAvx512(std::byte* to, const std::byte* from, std::size_t size) {
  CopyLinesIntoCache(to, from, size);
}
void CopyIntoCache(std::byte* to, const std::byte* from, std::size_t size) {
  static const bool wide = BestIsa() == Isa::kAvx512;
  wide ? CopyIntoCacheAvx512(to, from, size) : CopyIntoCacheBaseline(to, from, size);
}
#else
void CopyIntoCache(std::byte* to, const std::byte* from, std::size_t size) { CopyLinesIntoCache(to, from, size); }
#endif

// The item size is a constant in the loop, so that a copy is one load and one store.
template <std::int64_t kItemBytes>
void CopyApart(std::int64_t count, const std::byte* from, std::int64_t from_stride, std::byte* to,
               std::int64_t to_stride) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride * kItemBytes, from + i * from_stride * kItemBytes, kItemBytes);
  }
}

void CopySideBySide(std::size_t size, const std::byte* from, std::byte* to) {
  constexpr std::size_t kWorthAskingAhead = 4096;
  if (size < kWorthAskingAhead) {
    std::memcpy(to, from, size);
  } else {
    CopyIntoCache(to, from, size);
  }
}

}  // namespace

void CopyItems(int item_bytes, std::int64_t count, const std::byte* from, std::int64_t from_stride, std::byte* to,
               std::int64_t to_stride) {
  if (from_stride == 1 && to_stride == 1) return CopySideBySide(static_cast<std::size_t>(count * item_bytes), from, to);
  switch (item_bytes) {
    case 1:
      return CopyApart<1>(count, from, from_stride, to, to_stride);
    case 2:
      return CopyApart<2>(count, from, from_stride, to, to_stride);
    case 4:
      return CopyApart<4>(count, from, from_stride, to, to_stride);
    case 8:
      return CopyApart<8>(count, from, from_stride, to, to_stride);
    default:  // no dtype of today has such a size
      for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(to + i * to_stride * item_bytes, from + i * from_stride * item_bytes,
                    static_cast<std::size_t>(item_bytes));
      }
  }
}

}  // namespace bascule::copy_items_internal
