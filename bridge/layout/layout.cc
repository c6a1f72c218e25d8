#include "bridge/layout/layout.h"

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

}  // namespace bascule
