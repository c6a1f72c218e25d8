#include "bridge/layout/layout.h"

#include <algorithm>

namespace bascule {

std::int64_t TensorSpec::Elements() const { return Box::Whole(shape).Elements(); }

std::int64_t LocalTensor::Bytes() const { return Box::Whole(shape).Elements() * ItemBytes(dtype); }

Layout PlainLayout(std::vector<TensorSpec> tensors) {
  Layout layout;
  RankLayout rank;
  for (const TensorSpec& tensor : tensors) {
    const auto index = static_cast<std::int32_t>(rank.tensors.size());
    const Box whole = Box::Whole(tensor.shape);
    rank.tensors.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .stride = {}});
    rank.rows.push_back({.local = index, .local_box = whole, .logical = index, .logical_box = whole});
  }
  layout.tensors = std::move(tensors);
  layout.ranks.push_back(std::move(rank));
  return layout;
}

bool HoldsFullTensors(const Layout& layout) {
  if (layout.ranks.size() != 1 || layout.ranks[0].rows.size() != layout.tensors.size()) return false;
  const RankLayout& rank = layout.ranks[0];
  return std::all_of(rank.rows.begin(), rank.rows.end(), [&](const MapRow& row) {
    return row.logical != kFill &&
           row.local_box == Box::Whole(rank.tensors[static_cast<std::size_t>(row.local)].shape) &&
           row.logical_box == Box::Whole(layout.tensors[static_cast<std::size_t>(row.logical)].shape);
  });
}

}  // namespace bascule
