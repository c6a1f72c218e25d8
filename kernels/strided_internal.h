// Elements that do not lie side by side. The item size is a constant in the loops, so that a copy is one load and one
// store; sizes that no dtype has take the slow way.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace bascule::strided_internal {

// Calls body.operator()<n>() with n the item size as a constant, or 0 for a size without a loop of its own.
template <typename Body>
void WithItemSize(int item_bytes, Body&& body) {
  switch (item_bytes) {
    case 1:
      return body.template operator()<1>();
    case 2:
      return body.template operator()<2>();
    case 4:
      return body.template operator()<4>();
    case 8:
      return body.template operator()<8>();
    default:
      return body.template operator()<0>();
  }
}

// Copies `count` items; strides in items.
inline void CopyItems(int item_bytes, std::int64_t count, const std::byte* from, std::int64_t from_stride,
                      std::byte* to, std::int64_t to_stride) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(count * item_bytes));
    return;
  }
  WithItemSize(item_bytes, [&]<int kItemBytes>() {
    const std::int64_t item = kItemBytes > 0 ? kItemBytes : item_bytes;
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(to + i * to_stride * item, from + i * from_stride * item, static_cast<std::size_t>(item));
    }
  });
}

}  // namespace bascule::strided_internal
