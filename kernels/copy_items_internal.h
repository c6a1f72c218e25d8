// Copies of items that lie side by side or apart.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>

namespace bascule::copy_items_internal {

// Copies `count` items of `item_bytes` each; strides in items (0 repeats the one item at `from`).
void CopyItems(int item_bytes, std::int64_t count, const std::byte* from, std::int64_t from_stride, std::byte* to,
               std::int64_t to_stride);

// Copies items that lie `from_stride` apart to where they lie `to_stride` apart, and compact to `copy`. Each byte is
// read from `from` once, whoever may be writing there: what lies in `copy` is what was written to `to`. `copy` stays in
// this core's cache; a large target is written around it.
void PlaceItems(int item_bytes, std::int64_t count, const std::byte* from, std::int64_t from_stride, std::byte* to,
                std::int64_t to_stride, std::byte* copy);

}  // namespace bascule::copy_items_internal
