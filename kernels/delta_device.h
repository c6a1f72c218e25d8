// delta.h on a device, bit for bit: the changes of many boxes by one launch.
//
// Thread-safety: thread-safe. Each enqueues on `stream` and returns; what the batch points to stays as it is until
// `stream` passes this point. Errors of the device (device/device.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/stream.h"
#include "kernels/box_moves.h"

namespace bascule {

// Elements that one block compares, and whose changes the offset table counts together.
inline constexpr std::int64_t kCompareElements = 4096;
constexpr std::int64_t CompareBlocks(std::int64_t count) { return (count + kCompareElements - 1) / kCompareElements; }

// Two versions side by side: `count` elements of `item_bytes` (1, 2, 4 or 8) at `base` and at `next`, which are
// multiples of the element's size; 16-byte accesses where both are multiples of 16.
struct CompareBatch {
  const std::byte* base = nullptr;
  const std::byte* next = nullptr;
  std::int64_t count = 0;  // at most 2^32
  int item_bytes = 1;
  // Written: one bit for each element that differs, 16 elements a word, CompareBlocks(count) * 256 words.
  std::uint16_t* changed = nullptr;
  // Written: how many changes lie before each block of kCompareElements, and in all: CompareBlocks(count) + 1 sums.
  std::int64_t* first_change = nullptr;
  // Written: the first `capacity` changes, as delta.h has them.
  std::uint32_t* positions = nullptr;
  std::byte* items = nullptr;
  std::int64_t capacity = 0;
};
Status ExtractChangesOnDevice(const CompareBatch& batch, StreamHandle stream);

// Changes of all boxes of a table, box after box. A box lies at the *target* of its entry; conversions play no part.
struct ChangeBatch {
  const MoveEntry* entries = nullptr;
  std::int64_t entry_count = 0;
  const std::int64_t* first_change = nullptr;  // of each entry, and the count of all: entry_count + 1 sums
  const std::int64_t* first_item = nullptr;    // of each entry: where its first element lies in `items`, in bytes
  const std::uint32_t* positions = nullptr;    // checked (CheckChanges)
  const std::byte* items = nullptr;
  std::byte* replaced = nullptr;  // laid out as `items`: what was there before
  std::int64_t changes = 0;       // first_change[entry_count]
  std::uint64_t target_base = 0;
  TensorDigest* digests = nullptr;  // one for each entry
};
// Writes the changes and, to `replaced`, the elements that were there. Positions of a box are distinct.
Status ScatterOnDevice(const ChangeBatch& batch, StreamHandle stream);
// Adds to digests[i] what the changes of box i, which is as it was before them, do to its digest. Writes nothing else.
Status DigestChangesOnDevice(const ChangeBatch& batch, StreamHandle stream);

}  // namespace bascule

// Roofline, of comparing, per element: both versions read once, and an eighth of a byte written and read. Of a scatter,
// per change: 4 bytes of position and the element read, the sector of 32 bytes that it lies in read and written, the
// element written; its digest the same without the writes. 1 % of 16 GB of bf16 is 80 million changes: 6 GB.
