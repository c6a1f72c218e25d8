#include "bridge/plan/box_index_internal.h"

#include <algorithm>

namespace bascule {
namespace {

int DimensionOfMostOffsets(const std::vector<Box>& boxes) {
  int best = 0;
  std::size_t best_count = 0;
  for (int d = 0; d < boxes.front().dims(); ++d) {
    std::vector<std::int64_t> offsets;
    for (const Box& box : boxes) offsets.push_back(box.offset[d]);
    std::sort(offsets.begin(), offsets.end());
    const auto count = static_cast<std::size_t>(std::unique(offsets.begin(), offsets.end()) - offsets.begin());
    if (count > best_count) {
      best = d;
      best_count = count;
    }
  }
  return best;
}

}  // namespace

BoxIndex::BoxIndex(std::vector<Box> boxes) : boxes_(std::move(boxes)) {
  if (boxes_.empty() || boxes_.front().dims() == 0) return;
  dim_ = DimensionOfMostOffsets(boxes_);
  for (std::size_t i = 0; i < boxes_.size(); ++i) {
    const Box& box = boxes_[i];
    entries_.push_back({box.offset[dim_], box.offset[dim_] + box.extent[dim_], static_cast<std::int32_t>(i)});
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.box) < std::pair(b.begin, b.box); });
  for (std::size_t i = 1; i < entries_.size(); ++i) {
    entries_[i].end_max = std::max(entries_[i].end_max, entries_[i - 1].end_max);
  }
}

std::vector<std::int32_t> BoxIndex::Overlapping(const Box& query) const {
  std::vector<std::int32_t> found;
  if (query.dims() == 0) {  // Scalars: every box is the whole.
    for (std::size_t i = 0; i < boxes_.size(); ++i) found.push_back(static_cast<std::int32_t>(i));
    return found;
  }
  const std::int64_t begin = query.offset[dim_];
  const std::int64_t end = begin + query.extent[dim_];
  auto entry =
      std::partition_point(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.end_max <= begin; });
  for (; entry != entries_.end() && entry->begin < end; ++entry) {
    if (Intersect(box(entry->box), query)) found.push_back(entry->box);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace bascule
