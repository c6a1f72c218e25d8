#include "model/rank_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/checked_math.h"

namespace bascule {
namespace {

// This rank's share of `extent` rows (columns where they are cut); nothing where they do not divide.
std::optional<Range> ShareOfWeight(const Block& block, std::int64_t extent, TensorRank rank) {
  if (block.cut == Cut::kWhole) return Range{0, extent};
  const std::int64_t units = extent / block.unit;
  if (units % rank.count == 0) {
    const Range share = EvenRange(units, rank.rank, rank.count);
    return Range{share.begin * block.unit, share.size * block.unit};
  }
  if (block.cut == Cut::kKvHeads && rank.count % units == 0) {
    return Range{rank.rank * units / rank.count * block.unit, block.unit};
  }
  return std::nullopt;
}

bool IsWholeGrains(const Block& block, std::int64_t extent, Range share) {
  const std::int64_t end = share.begin + share.size;
  return share.begin % block.grain == 0 && (end % block.grain == 0 || end == extent);
}

// Tensor-parallel sizes that cut no grain.
std::vector<int> SizesThatCutNone(const Block& block) {
  constexpr int kSizesShown = 64;
  std::vector<int> sizes;
  for (int count = 1; count <= kSizesShown; ++count) {
    bool whole = true;
    for (int rank = 0; rank < count && whole; ++rank) {
      const auto share = ShareOfWeight(block, block.weight_extent, {rank, count});
      whole = share && IsWholeGrains(block, block.weight_extent, *share);
    }
    if (whole) sizes.push_back(count);
  }
  return sizes;
}

// This rank's rows (columns where they are cut) of a block of `extent` of them.
Result<Range> ShareOf(const Block& block, std::int64_t extent, TensorRank rank, const std::string& name) {
  if (block.cut == Cut::kWhole) return Range{0, extent};
  const std::int64_t shared = block.grain > 1 ? block.weight_extent : extent;
  const std::optional<Range> share = ShareOfWeight(block, shared, rank);
  if (!share) {
    return Status::InvalidArgument(
        "does_not_divide",
        fmt::format("{}: {}{} do not divide among {} ranks{}", name, shared,
                    block.unit == 1 ? "" : fmt::format(" = {} heads of {}", shared / block.unit, block.unit),
                    rank.count, block.cut == Cut::kKvHeads ? ", nor the ranks among the heads" : ""));
  }
  if (block.grain == 1) return *share;
  if (!IsWholeGrains(block, shared, *share)) {
    return Status::InvalidArgument(
        "quantization_block_cut",
        fmt::format("{}: {} [{}, {}) of {} are rank {}'s of {}, and cut a block of {}; tensor-parallel sizes that cut "
                    "none: {}",
                    name, block.cut == Cut::kColumns ? "columns" : "rows", share->begin, share->begin + share->size,
                    shared, rank.rank, rank.count, block.grain, fmt::join(SizesThatCutNone(block), ", ")));
  }
  const std::int64_t begin = share->begin / block.grain;
  return Range{begin, (share->begin + share->size + block.grain - 1) / block.grain - begin};
}

// `box` of one expert in the tensor that stacks them.
Box OfExpert(std::int64_t expert, const Box& box) {
  Box stacked{{expert}, {1}};
  for (int d = 0; d < box.dims(); ++d) {
    stacked.offset.push_back(box.offset[d]);
    stacked.extent.push_back(box.extent[d]);
  }
  return stacked;
}

}  // namespace

Range EvenRange(std::int64_t count, int part, int parts) {
  const std::int64_t begin = count * part / parts;
  return {begin, count * (part + 1) / parts - begin};
}

Result<int> RankBuilder::Add(const TableTensor& tensor) {
  ASSIGN_OR_RETURN(const DType dtype, DTypeOfBlocks(tensor));
  const bool whole_experts = expert_parallel_ && tensor.expert_count > 0;
  Range experts{0, tensor.expert_count};
  if (whole_experts) {
    ASSIGN_OR_RETURN(experts, ShareOf({.cut = Cut::kRows}, tensor.expert_count, rank_, tensor.name + ": experts"));
  }
  Dims block_shape;
  std::int64_t rows = 0;
  for (const Block& block : tensor.blocks) {
    ASSIGN_OR_RETURN(block_shape, AddBlock(block, rows, tensor, experts, whole_experts ? TensorRank{} : rank_));
    rows += block_shape[0];
  }
  block_shape[0] = rows;
  Dims shape;
  if (tensor.expert_count > 0) shape.push_back(experts.size);
  for (const std::int64_t count : block_shape) shape.push_back(count);
  layout_.tensors.push_back({.name = tensor.name, .dtype = dtype, .shape = shape, .stride = {}});
  return static_cast<int>(layout_.tensors.size()) - 1;
}

Result<DType> RankBuilder::DTypeOfBlocks(const TableTensor& tensor) const {
  const TensorSpec& first = SpecOf(tensor.blocks.front().logical);
  for (std::int64_t expert = 0; expert < std::max<std::int64_t>(tensor.expert_count, 1); ++expert) {
    for (const Block& block : tensor.blocks) {
      const TensorSpec& other = SpecOf(block.logical + static_cast<std::int32_t>(expert) * tensor.expert_step);
      if (other.dtype == first.dtype) continue;
      return Status::InvalidArgument(
          "mixed_dtypes", fmt::format("{} cannot hold both {} {} and {} {}", tensor.name, DTypeName(first.dtype),
                                      first.name, DTypeName(other.dtype), other.name));
    }
  }
  return first.dtype;
}

Result<Dims> RankBuilder::AddBlock(const Block& block, std::int64_t first_row, const TableTensor& tensor, Range experts,
                                   TensorRank rank) {
  if (block.cut == Cut::kVocabulary) return AddVocabulary(block.logical);
  const TensorSpec& spec = SpecOf(block.logical);
  Box logical_box = Box::Whole(spec.shape);
  logical_box.offset[0] = block.first_row;
  logical_box.extent[0] = block.rows;
  const int dimension = block.cut == Cut::kColumns ? 1 : 0;
  ASSIGN_OR_RETURN(const Range share, ShareOf(block, logical_box.extent[dimension], rank, spec.name));
  logical_box.offset[dimension] += share.begin;
  logical_box.extent[dimension] = share.size;
  Box local_box = Box::Whole(logical_box.extent);
  local_box.offset[0] = first_row;
  if (tensor.expert_count == 0) AddRow(local_box, block.logical, logical_box);
  for (std::int64_t e = 0; e < experts.size; ++e) {
    const auto expert = static_cast<std::int32_t>(experts.begin + e);
    AddRow(OfExpert(e, local_box), block.logical + expert * tensor.expert_step, logical_box);
  }
  return logical_box.extent;
}

// A rank whose range lies behind the last logical row holds nothing but padding.
Result<Dims> RankBuilder::AddVocabulary(std::int32_t logical) {
  const TensorSpec& spec = SpecOf(logical);
  const std::int64_t padded = RoundUp(spec.shape[0], kVocabularyMultiple);
  ASSIGN_OR_RETURN(const Range share,
                   ShareOf({.cut = Cut::kRows}, padded, rank_, fmt::format("{} padded to {}", spec.name, padded)));
  Dims shape = spec.shape;
  shape[0] = share.size;
  Box held = Box::Whole(shape);
  held.extent[0] = std::clamp<std::int64_t>(spec.shape[0] - share.begin, 0, share.size);
  Box logical_box = held;
  logical_box.offset[0] = share.begin;
  if (!held.Empty()) AddRow(held, logical, logical_box);
  Box padding = Box::Whole(shape);
  padding.offset[0] = held.extent[0];
  padding.extent[0] -= held.extent[0];
  if (!padding.Empty()) AddRow(padding, kFill, {});
  return shape;
}

void RankBuilder::AddRow(const Box& local_box, std::int32_t logical, const Box& logical_box) {
  layout_.rows.push_back({static_cast<std::int32_t>(layout_.tensors.size()), local_box, logical, logical_box});
}

}  // namespace bascule
