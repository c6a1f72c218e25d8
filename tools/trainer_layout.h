// STUB until trainer_side/layouts lands.
#pragma once
#include <string_view>
#include <vector>
#include "base/status.h"
#include "bridge/layout/layout.h"
#include "model/model_config.h"
namespace bascule {
inline Result<Layout> MakeTrainerLayout(std::string_view, int ranks, const std::vector<TensorSpec>& tensors, const ModelConfig*) {
  Layout layout{.tensors = tensors, .ranks = std::vector<RankLayout>(static_cast<std::size_t>(ranks))};
  for (int rank = 0; rank < ranks; ++rank) {
    RankLayout& mine = layout.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      Box box = Box::Whole(tensors[t].shape);
      if (box.dims() == 0) { if (rank > 0) continue; }
      else {
        const std::int64_t n = box.extent[0], begin = n * rank / ranks;
        box.offset[0] = begin; box.extent[0] = n * (rank + 1) / ranks - begin;
      }
      mine.rows.push_back({.local = static_cast<std::int32_t>(mine.tensors.size()), .local_box = Box::Whole(box.extent), .logical = static_cast<std::int32_t>(t), .logical_box = box});
      mine.tensors.push_back({.name = tensors[t].name, .dtype = tensors[t].dtype, .shape = box.extent, .stride = {}});
    }
  }
  return layout;
}
}  // namespace bascule
