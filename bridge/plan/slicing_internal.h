// From two layouts to runs: boxes of logical tensors that one engine row needs and certain sender rows can give.
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

// What one engine row takes from one set of holders. It is cut into parts that fit a bucket, of which only size and
// sender are kept: PartsOf makes their boxes again.
struct Run {
  std::int32_t tensor = 0;  // logical, in the engine's numbering
  Box logical_box;
  RowRef engine;
  std::int32_t holders = 0;  // index into Slicing::holder_sets
  bool counts = true;        // the first engine row that needs these elements
  // How many runs from here on, this one among them, are the same for other engine ranks, and share their parts.
  std::size_t twins = 1;
  // Its parts are Slicing::parts[first_part + i * part_step]. Runs of the same box, one an engine row, that do not
  // share them take turns: so where senders are used in turn, each serves the same engine ranks again and again, and
  // routes stay few.
  std::size_t first_part = 0;
  std::size_t part_step = 1;
  std::size_t part_count = 0;
};

struct Part {
  std::int32_t holders = 0;  // its run's
  std::int64_t wire_bytes = 0;
};

struct Slicing {
  std::vector<Run> runs;  // in the engine's tensor order
  std::vector<Part> parts;
  std::vector<std::vector<RowRef>> holder_sets;  // by rank; each rank once
};

// The boxes of a run of a tensor of this type, in row-major order, each of at most `bucket_bytes` on the wire.
std::vector<Box> PartsOf(const Box& box, DType wire_type, std::int64_t bucket_bytes);

// Every element that an engine row needs of the tensors that `match` pairs, once. With `twins`, what several engine
// ranks need is sent by one rank.
//
// FailedPrecondition "not_covered"  no sender row has an element: tensor, engine rank, box
Result<Slicing> SliceTensors(const Layout& sender, const Layout& engine, const NameMatch& match,
                             std::int64_t bucket_bytes, bool twins);

// The sender row for each part, such that the bytes of the busiest sending rank come within one part of the least
// possible, where parts are of one size.
std::vector<RowRef> BalanceSenders(const Slicing& slicing, std::size_t sender_ranks);

// For two sides that are laid out alike, rank for rank: each engine rank takes everything from its twin.
std::vector<RowRef> TakeFromTwins(const Slicing& slicing);

}  // namespace bascule
