// Boxes of elements between tensors and bucket payloads. A payload holds a box in compact row-major order.
//
// Thread-safety: thread-safe (pure functions on the caller's memory).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/box.h"
#include "kernels/conversion.h"
#include "kernels/digest.h"

namespace bascule {

// Where a box lies in a payload: row-major, without gaps, from the payload's first element on.
BoxPlace CompactPlace(const BoxShape& shape);

// Copies the box of `shape` at `source` (from `source_base` on) into `payload` and returns the digest of the elements
// *as read from the source, after conversion*: never of the payload. One pass over the source. `item_bytes` is the
// size of a source element; `payload` is exactly Elements() times the converted size and does not overlap the source.
TensorDigest PackAndDigestOnHost(const DigestKey& key, const BoxShape& shape, Conversion conversion, int item_bytes,
                                 const std::byte* source_base, const BoxPlace& source, const BoxPlace& logical,
                                 std::span<std::byte> payload);

// Copies a compact `payload` into the box at `target` (from `target_base` on). `payload` is Elements() * item_bytes.
void UnpackOnHost(const BoxShape& shape, int item_bytes, std::span<const std::byte> payload, std::byte* target_base,
                  const BoxPlace& target);

// The same, and the digest of what was written. Each payload byte is loaded once, and what was loaded is both stored at
// the target and digested: a payload that changes meanwhile cannot make the two differ. `logical` is the box's place in
// the logical tensor. Large runs are written around the cache. When this returns, other threads that learn of it see
// what was written.
TensorDigest UnpackAndDigestOnHost(const DigestKey& key, const BoxShape& shape, int item_bytes,
                                   std::span<const std::byte> payload, std::byte* target_base, const BoxPlace& target,
                                   const BoxPlace& logical);

// The same of a box that lies at `source` (from `source_base` on), in a memory that does not overlap the target.
TensorDigest CopyAndDigestBoxOnHost(const DigestKey& key, const BoxShape& shape, int item_bytes,
                                    const std::byte* source_base, const BoxPlace& source, std::byte* target_base,
                                    const BoxPlace& target, const BoxPlace& logical);

// Copies a box between two memories that do not overlap.
void CopyBoxOnHost(const BoxShape& shape, int item_bytes, const std::byte* source_base, const BoxPlace& source,
                   std::byte* target_base, const BoxPlace& target);

// Writes `element` (item_bytes long) to every element of the box.
void FillBoxOnHost(const BoxShape& shape, std::span<const std::byte> element, std::byte* target_base,
                   const BoxPlace& target);

}  // namespace bascule

// Roofline, per element: pack, unpack and copy read it once and write it once (in its converted size); fill only
// writes.
