// A hyper-rectangle of a tensor: [offset, offset + extent) in each dimension, in elements.
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
  std::string ToString() const;   // "[0:48, 16:32]"
  friend bool operator==(const Box&, const Box&) = default;
  friend auto operator<=>(const Box&, const Box&) = default;
};

// Nothing when they share no element or differ in dims.
std::optional<Box> Intersect(const Box& a, const Box& b);
// True when `inner` lies wholly in `outer`.
bool Contains(const Box& outer, const Box& inner);
// The box as a shape and its place in a row-major tensor of `shape` (or one with `stride`, in elements).
BoxShape ShapeOf(const Box& box);
BoxPlace PlaceIn(const Box& box, const Dims& shape);
BoxPlace PlaceInStrided(const Box& box, const Dims& stride);
Dims RowMajorStride(const Dims& shape);
// The element range [begin, end) of a row-major tensor of `shape` as at most 2n-1 boxes, in order.
std::vector<Box> BoxesOfRange(const Dims& shape, std::int64_t begin, std::int64_t end);

}  // namespace bascule
