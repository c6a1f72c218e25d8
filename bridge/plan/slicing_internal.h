// From two layouts to pieces: parts of logical tensors that one engine row needs and certain sender rows can give.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "bridge/plan/name_match_internal.h"
#include "bridge/plan/plan.h"

namespace bascule {

// A map row of one side.
struct RowRef {
  std::int32_t rank = 0;
  std::int32_t row = 0;
  friend auto operator<=>(const RowRef&, const RowRef&) = default;
};

struct Piece {
  std::int32_t tensor = 0;  // logical, in the engine's numbering
  Box logical_box;
  RowRef engine;
  std::int32_t holders = 0;  // index into Slicing::holder_sets
  bool counts = true;        // the first engine row that needs these elements
  std::int64_t wire_bytes = 0;
};

struct Slicing {
  std::vector<Piece> pieces;                     // in the engine's tensor order
  std::vector<std::vector<RowRef>> holder_sets;  // by rank; each rank once
};

// Every element that an engine row needs, as pieces of at most `bucket_bytes` on the wire.
//
// FailedPrecondition "not_covered"  no sender row has an element: tensor, engine rank, box
Result<Slicing> SliceTensors(const Layout& sender, const Layout& engine, const NameMatch& match,
                             std::int64_t bucket_bytes);

// The sender row for each piece, such that the bytes of the busiest sending rank come within one piece of the least
// possible where ranks hold the same boxes.
std::vector<RowRef> BalanceSenders(const Slicing& slicing, std::size_t sender_ranks);

// For two sides that are laid out alike, rank for rank: each engine rank takes everything from its twin.
std::vector<RowRef> TakeFromTwins(const Slicing& slicing);

}  // namespace bascule
