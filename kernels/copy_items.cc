#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/copy_items_internal.h"

namespace bascule::copy_items_internal {
namespace {

#if defined(__x86_64__)
constexpr std::size_t kLineBytes = 64;

// Writes around the cache, so that no line is fetched only to be overwritten: a line of `from` is loaded, and stored
// twice from registers. The source may lie in another core's cache, which the hardware fetches from line by line, so it
// is asked for well ahead.
void StreamTwice(const std::byte* from, std::byte* to, std::byte* copy, std::size_t size) {
  constexpr std::size_t kAheadBytes = 2048;
  const std::size_t head =
      std::min(size, (kLineBytes - reinterpret_cast<std::uintptr_t>(to) % kLineBytes) % kLineBytes);
  std::memcpy(copy, from, head);
  std::memcpy(to, copy, head);
  std::size_t at = head;
  for (; at + kLineBytes <= size; at += kLineBytes) {
    __builtin_prefetch(from + at + kAheadBytes);
    for (std::size_t part = at; part < at + kLineBytes; part += sizeof(__m128i)) {
      const __m128i loaded = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + part));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + part), loaded);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(copy + part), loaded);
    }
  }
  std::memcpy(copy + at, from + at, size - at);
  std::memcpy(to + at, copy + at, size - at);
  _mm_sfence();  // these stores are ordered by nothing else: whoever is told of them next sees them
}
#else
void StreamTwice(const std::byte* from, std::byte* to, std::byte* copy, std::size_t size) {
  std::memcpy(copy, from, size);
  std::memcpy(to, copy, size);
}
#endif

// The item size is a constant in the loop, so that a copy is one load and one store.
template <std::int64_t kItemBytes>
void CopyApart(std::int64_t count, const std::byte* from, std::int64_t from_stride, std::byte* to,
               std::int64_t to_stride) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride * kItemBytes, from + i * from_stride * kItemBytes, kItemBytes);
  }
}

}  // namespace

void CopyItems(int item_bytes, std::int64_t count, const std::byte* from, std::int64_t from_stride, std::byte* to,
               std::int64_t to_stride) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count * item_bytes));
    return;
  }
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

void PlaceItems(int item_bytes, std::int64_t count, const std::byte* from, std::int64_t from_stride, std::byte* to,
                std::int64_t to_stride, std::byte* copy) {
  constexpr std::size_t kWorthStreaming = 16384;  // below it what is written is of use in the cache
  const auto size = static_cast<std::size_t>(count * item_bytes);
  if (from_stride == 1 && to_stride == 1 && size >= kWorthStreaming) return StreamTwice(from, to, copy, size);
  CopyItems(item_bytes, count, from, from_stride, copy, 1);
  CopyItems(item_bytes, count, copy, 1, to, to_stride);
}

}  // namespace bascule::copy_items_internal
