// Exact arithmetic on sets of boxes: does every element lie in exactly one, and which boxes share which elements.
// Works on stretches between box borders, dimension by dimension, so that the cost follows the number of boxes (of
// grids, row and column cuts, flat ranges), never the number of elements.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bridge/layout/box.h"

namespace bascule {

struct CoverBreach {
  enum class Kind { kHole, kTwice };
  Kind kind = Kind::kHole;
  Box box;  // elements that no box has, or several boxes have
};

// The first breach in row-major order of borders; nothing when every element of `region` lies in exactly one of
// `boxes`, which are not empty and lie in `region`.
std::optional<CoverBreach> FindBreach(const Box& region, std::span<const Box> boxes);

// Elements that the same boxes have.
struct Cell {
  Box box;
  std::vector<std::int32_t> holders;  // indices of these boxes, ascending; at least one
};

// Disjoint cells that together are the union of `boxes` (not empty, of equal dims), sorted. A box that overlaps no
// other but its equals stays whole.
std::vector<Cell> DisjointCells(std::span<const Box> boxes);

}  // namespace bascule
