// The elements in which two versions of a box differ: found where the new version is, put into place where the old one
// is. How they travel (gaps, steps, an entropy stage) is not a kernel's matter.
//
// Changes of a box are positions, rising, each the index of an element in the box's row-major order, and the new
// elements side by side in that order. Bits are compared, not numbers: +0 differs from -0, and a NaN from itself only
// when its bits do. A position has 32 bits, which halves what is staged; a box of more elements is cut in two. All
// offsets into memory have 64.
//
// Thread-safety: thread-safe (pure functions on the caller's memory).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "kernels/box.h"
#include "kernels/digest.h"

namespace bascule {

struct BoxChanges {
  std::span<const std::uint32_t> positions;
  std::span<const std::byte> items;  // positions.size() elements
};

// Compares element by element what lies compact at `base` and at `next`, which are as long, and returns how many
// differ. The first of them, as many as `positions` and `items` have room for, are written there.
std::int64_t ExtractChangesOnHost(int item_bytes, std::span<const std::byte> base, std::span<const std::byte> next,
                                  std::span<std::uint32_t> positions, std::span<std::byte> items);

// What came over a wire is applied only when this is OK.
//
// InvalidArgument "change_order"    a position does not rise above the one before
// InvalidArgument "change_outside"  a position is not in a box of `elements`
Status CheckChanges(std::span<const std::uint32_t> positions, std::int64_t elements);

// Writes the changes into the box at `target` (from `target_base` on) and the elements that were there to `replaced`,
// which is as long as the items. Scattering what was replaced, at the same positions, restores every byte.
void ScatterOnHost(const BoxShape& shape, int item_bytes, const BoxChanges& changes, std::byte* target_base,
                   const BoxPlace& target, std::span<std::byte> replaced);

// The digest of the box once the changes are in it, less its digest as it lies at `base` now. Only the elements that
// change are read, and nothing is written: a delta is checked against the digest of the whole new tensor before it is
// applied.
TensorDigest DigestOfChangesOnHost(const DigestKey& key, const BoxShape& shape, int item_bytes,
                                   const BoxChanges& changes, const std::byte* base, const BoxPlace& memory,
                                   const BoxPlace& logical);

}  // namespace bascule

// Roofline: comparing reads each element of both versions once. A scatter, per change: 4 bytes of position, an element
// read and written beside it, and the line it lies in read and written: at 1 % changed nearly every line of 64 bytes
// for elements of 2 bytes is touched once. Its digest: the same without the writes.
