// A hyper-rectangle of a tensor: [offset, offset + extent) in each dimension, in elements.
//
// Boxes that hold the same elements in the same order may differ in dimensions of extent 1 (one expert of a stack is
// [1, n, m] there and [n, m] alone). So shapes and places for kernels leave such dimensions out: ShapeOf one of them
// goes with the places of all.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bridge/layout/dims.h"
#include "kernels/box.h"

namespace bascule {

struct Box {
  Dims offset;
  Dims extent;

  static Box Whole(const Dims& shape) { return Box{Dims::Zeros(shape.size()), shape}; }
  int dims() const { return extent.size(); }
  std::int64_t Elements() const;  // 1 for a scalar
  bool Empty() const { return Elements() == 0; }
  std::string ToString() const;  // "[0:48, 16:32]"
  friend bool operator==(const Box&, const Box&) = default;
  friend auto operator<=>(const Box&, const Box&) = default;
};

// Nothing when they share no element or differ in dims.
std::optional<Box> Intersect(const Box& a, const Box& b);
// True when `inner` lies wholly in `outer`.
bool Contains(const Box& outer, const Box& inner);
// True when `box` has the dims of `shape` and lies in it, whatever its numbers are. An empty box fits wherever its
// extents do: it carries no range, so its offset is not looked at.
bool FitsIn(const Box& box, const Dims& shape);
// True when the extents are equal once dimensions of extent 1 are left out, or both are empty.
bool SameElements(const Box& a, const Box& b);
// Where `part`, which lies in `from`, lies in `to`: boxes of the same elements (SameElements), none of them empty.
Box CorrespondingBox(const Box& part, const Box& from, const Box& to);

// The box as a shape, and its place in a row-major tensor of `shape` (or one with `stride`, in elements): both without
// the dimensions in which the box has extent 1. An empty box has its place at 0.
BoxShape ShapeOf(const Box& box);
BoxPlace PlaceIn(const Box& box, const Dims& shape);
BoxPlace PlaceInStrided(const Box& box, const Dims& stride);
Dims RowMajorStride(const Dims& shape);

// The element range [begin, end) of a row-major tensor of `shape` as at most 2n-1 boxes, in order.
std::vector<Box> BoxesOfRange(const Dims& shape, std::int64_t begin, std::int64_t end);
// `box` as boxes of at most `elements_max` elements, in row-major order, cut in the outermost dimension that allows it.
std::vector<Box> CutBox(const Box& box, std::int64_t elements_max);

}  // namespace bascule
