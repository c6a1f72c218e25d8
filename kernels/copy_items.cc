#include <cstring>

#include "kernels/copy_items_internal.h"

namespace bascule::copy_items_internal {
namespace {

constexpr std::size_t kLineBytes = 64;

#if defined(__x86_64__)
#define BASCULE_PREFETCHW [[gnu::target("prfchw")]]  // does nothing on a processor without it
#else
#define BASCULE_PREFETCHW
#endif

// memcpy for a large target that is cold now and read soon. Past some size memcpy itself writes around the cache; and a
// plain store waits until its line is there, so lines are asked for well ahead. The source may lie in another core's
// cache, which the hardware fetches from line by line: it is asked for ahead as well.
BASCULE_PREFETCHW void CopyIntoCache(std::byte* to, const std::byte* from, std::size_t size) {
  constexpr std::size_t kAheadBytes = 4096;
  constexpr std::size_t kSourceAheadBytes = 2048;
  std::size_t at = 0;
  for (; at + kLineBytes <= size; at += kLineBytes) {
    __builtin_prefetch(to + at + kAheadBytes, /*rw=*/1);
    __builtin_prefetch(from + at + kSourceAheadBytes);
    std::memcpy(to + at, from + at, kLineBytes);
  }
  std::memcpy(to + at, from + at, size - at);
}

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
