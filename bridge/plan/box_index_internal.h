// Finds the boxes of a fixed set that overlap a given one, without looking at all of them: sorted along the dimension
// in which they differ most.
//
// Thread-safety: thread-safe once made.
#pragma once

#include <cstdint>
#include <vector>

#include "bridge/layout/box.h"

namespace bascule {

class BoxIndex {
 public:
  // `boxes` are not empty and of equal dims.
  explicit BoxIndex(std::vector<Box> boxes);

  const Box& box(std::int32_t index) const { return boxes_[static_cast<std::size_t>(index)]; }
  // Indices of the boxes that share an element with `query`, ascending.
  std::vector<std::int32_t> Overlapping(const Box& query) const;

 private:
  struct Entry {
    std::int64_t begin = 0;
    std::int64_t end_max = 0;  // over this and all entries before it
    std::int32_t box = 0;
  };
  std::vector<Box> boxes_;
  int dim_ = 0;                 // along which entries_ are sorted
  std::vector<Entry> entries_;  // by begin
};

}  // namespace bascule
