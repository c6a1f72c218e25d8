// Random tensors, boxes and strides for the property tests, from a seed that a failure prints.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/box.h"

namespace bascule {

using Random = std::mt19937_64;

inline std::int64_t Uniform(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

inline std::vector<std::byte> RandomBytes(Random& random, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// 0 to 4 dimensions of 1 to `max_count` elements.
inline BoxShape RandomShape(Random& random, std::int64_t max_count) {
  BoxShape shape;
  shape.dims = static_cast<int>(Uniform(random, 0, 4));
  for (int d = 0; d < shape.dims; ++d) shape.count[static_cast<std::size_t>(d)] = Uniform(random, 1, max_count);
  return shape;
}

// A place for `shape` in which no two elements share memory: its dimensions nested in a random order (a transposed
// view) with random gaps. `elements` receives the size of memory that holds it.
inline BoxPlace RandomPlace(Random& random, const BoxShape& shape, std::int64_t& elements) {
  std::array<std::size_t, kMaxDims> order;
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (Uniform(random, 0, 1) == 0) std::shuffle(order.begin(), order.begin() + shape.dims, random);
  BoxPlace place;
  place.offset = Uniform(random, 0, 7);
  std::int64_t stride = 1;
  for (auto i = static_cast<std::size_t>(shape.dims); i > 0; --i) {
    if (Uniform(random, 0, 2) == 0) stride += Uniform(random, 0, 3);
    place.stride[order[i - 1]] = stride;
    stride *= shape.count[order[i - 1]];
  }
  elements = place.offset + stride;
  return place;
}

inline BoxPlace RowMajorPlace(const BoxShape& shape) {
  BoxPlace place;
  std::int64_t stride = 1;
  for (auto d = static_cast<std::size_t>(shape.dims); d > 0; --d) {
    place.stride[d - 1] = stride;
    stride *= shape.count[d - 1];
  }
  return place;
}

// The offset of element `index` (in the shape's row-major order) by division: how no kernel computes it.
inline std::int64_t OffsetOf(const BoxShape& shape, const BoxPlace& place, std::int64_t index) {
  std::int64_t offset = place.offset;
  for (auto d = static_cast<std::size_t>(shape.dims); d > 0; --d) {
    offset += index % shape.count[d - 1] * place.stride[d - 1];
    index /= shape.count[d - 1];
  }
  return offset;
}

struct SubBox {
  BoxShape shape;
  BoxPlace place;  // in the row-major tensor it was cut from
};

// Cuts the whole tensor in two along a random dimension, again and again.
inline std::vector<SubBox> RandomPartition(Random& random, const BoxShape& tensor, int cuts) {
  std::vector<SubBox> boxes = {{tensor, RowMajorPlace(tensor)}};
  for (int c = 0; c < cuts && tensor.dims > 0; ++c) {
    const auto which = static_cast<std::size_t>(Uniform(random, 0, static_cast<std::int64_t>(boxes.size()) - 1));
    const auto d = static_cast<std::size_t>(Uniform(random, 0, tensor.dims - 1));
    SubBox upper = boxes[which];
    const std::int64_t at = Uniform(random, 0, upper.shape.count[d]);  // an empty box is an ordinary box
    boxes[which].shape.count[d] = at;
    upper.place.offset += at * upper.place.stride[d];
    upper.shape.count[d] -= at;
    boxes.push_back(upper);
  }
  return boxes;
}

}  // namespace bascule
