// A torch::Tensor as the bridge sees it: the whole adapter between a trainer that uses torch and Bascule.
#pragma once

// torch brings glog's CHECK; ours stays as it was.
#pragma push_macro("CHECK")
#undef CHECK
#include <torch/types.h>
#pragma pop_macro("CHECK")

#include <string>

#include "base/status.h"
#include "trainer_side/tensor_source.h"

namespace bascule::rl_loop {

// InvalidArgument "unsupported_dtype"  not float32, float16 or bfloat16
inline Result<DType> DTypeOf(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kFloat32:
      return DType::kF32;
    case torch::kFloat16:
      return DType::kF16;
    case torch::kBFloat16:
      return DType::kBf16;
    default:
      return Status::InvalidArgument("unsupported_dtype", c10::toString(tensor.scalar_type()));
  }
}

// `shard` is the rows from `first_row` on of the logical tensor `name` of `shape`. The view borrows the shard's memory:
// optimizers that update in place (torch's do) keep it valid.
//
// InvalidArgument "unsupported_dtype" | "not_in_host_memory"
inline Result<ShardView> ViewOfRows(std::string name, const Dims& shape, std::int64_t first_row,
                                    const torch::Tensor& shard) {
  if (!shard.device().is_cpu()) return Status::InvalidArgument("not_in_host_memory", name);
  ASSIGN_OR_RETURN(const DType dtype, DTypeOf(shard));
  ShardView view;
  view.tensor = {std::move(name), dtype, shape};
  view.box = {Dims::Zeros(shape.size()), Dims(std::span(shard.sizes().data(), shard.sizes().size()))};
  view.box.offset[0] = first_row;
  view.data = shard.data_ptr();
  view.stride = Dims(std::span(shard.strides().data(), shard.strides().size()));
  return view;
}

}  // namespace bascule::rl_loop
