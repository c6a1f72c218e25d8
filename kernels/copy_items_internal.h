// Copies of items that lie side by side or apart.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>

namespace bascule::copy_items_internal {

// Copies `count` items of `item_bytes` each; strides in items (0 repeats the one item at `from`). Leaves the target in
// this core's cache.
void CopyItems(int item_bytes, std::int64_t count, const std::byte* from, std::int64_t from_stride, std::byte* to,
               std::int64_t to_stride);

}  // namespace bascule::copy_items_internal
