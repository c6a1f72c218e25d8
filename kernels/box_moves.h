// Many boxes, moved by one launch: the slices of a bucket, the carry-over of a delta, the padding rows of a slot. A
// table is made once for a plan and copied into device memory; it serves every sync, since it says where boxes lie
// from a base that the launch names.
//
// Thread-safety: thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/box.h"
#include "kernels/conversion.h"
#include "kernels/digest.h"

namespace bascule {

// One box, as its owner sees it. Places count elements from `source_bytes` after the launch's source base and from
// `target_bytes` after its target base; both are multiples of the element's size there.
struct BoxMove {
  BoxShape shape;
  int item_bytes = 1;  // of a source element: 1, 2, 4 or 8
  Conversion conversion = Conversion::kNone;
  std::int64_t source_bytes = 0;
  BoxPlace source;
  std::int64_t target_bytes = 0;
  BoxPlace target;
  BoxPlace logical;  // in the logical tensor, whose digest the box is part of
  DigestKey key;
  bool fills = false;         // there is no source: every element becomes `element`
  std::uint64_t element = 0;  // its bytes in memory order, the first ones in the low bits
};

// The same as the kernels read it: offsets in bytes, a box as runs, runs as segments. A segment is what one run has in
// one chunk of the logical tensor (kDigestChunkBytes of its converted bytes), so one digest key serves all of it. A
// warp takes a tile of up to 32 segments.
struct MoveEntry {
  enum Place { kSource, kTarget, kLogical, kPlaces };

  std::array<std::int64_t, kPlaces> first{};  // of the first run
  std::array<std::array<std::int64_t, kMaxDims>, kPlaces> stride{};
  std::array<std::int64_t, kMaxDims> count{};
  std::int32_t dims = 0;
  std::int32_t tile_segments = 1;
  std::int64_t first_tile = 0;
  std::int64_t segments = 0;
  std::int64_t segments_per_run = 1;  // some may be empty
  std::int64_t run_bytes = 0;         // converted
  std::uint64_t element = 0;          // repeated over 8 bytes
  DigestKey key;
  Conversion conversion = Conversion::kNone;
  bool fills = false;
  bool lane_each = false;       // runs are short: a lane takes a segment instead of the warp
  std::uint8_t item_bytes = 1;  // converted
};

// Where run number `run` of the entry begins, in bytes, one for each place.
constexpr std::array<std::int64_t, MoveEntry::kPlaces> BeginOfRun(const MoveEntry& entry, std::int64_t run) {
  std::array<std::int64_t, MoveEntry::kPlaces> begin = entry.first;
  for (int d = entry.dims - 1; d >= 0; --d) {
    const auto dim = static_cast<std::size_t>(d);
    const std::int64_t above = run / entry.count[dim], at = run - above * entry.count[dim];
    for (std::size_t p = 0; p < MoveEntry::kPlaces; ++p) begin[p] += at * entry.stride[p][dim];
    run = above;
  }
  return begin;
}

class BoxMoveTable {
 public:
  // InvalidArgument "item_bytes"  a size that no kernel knows, or one that `conversion` does not start from
  // InvalidArgument "misaligned"  an offset that is no multiple of the element's size
  Status Add(const BoxMove& move);

  std::span<const MoveEntry> entries() const { return entries_; }  // in the order of Add
  std::int64_t tiles() const { return tiles_; }

 private:
  std::vector<MoveEntry> entries_;
  std::int64_t tiles_ = 0;
};

// A table in device memory and where its boxes lie this time. Bases are addresses (0 where a table has addresses for
// offsets) and multiples of the element sizes; 16-byte accesses are used where a box's bytes and logical positions
// allow it: where they are equal modulo 16.
struct MoveBatch {
  const MoveEntry* entries = nullptr;
  std::int64_t entry_count = 0;
  std::int64_t tiles = 0;
  std::uint64_t source_base = 0;
  std::uint64_t target_base = 0;
  TensorDigest* digests = nullptr;  // one for each entry, in device memory: a box's digest is added to it
};

}  // namespace bascule

// Roofline: none; a table touches no element.
