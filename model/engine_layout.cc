#include "model/engine_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked_math.h"
#include "model/model_table.h"

namespace bascule {
namespace {

constexpr std::int64_t kVocabularyMultiple = 64;

struct Range {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

Range Even(std::int64_t count, int part, int parts) {
  const std::int64_t begin = count * part / parts;
  return {begin, count * (part + 1) / parts - begin};
}

struct TensorRank {
  int rank = 0;
  int count = 1;
};

// This rank's rows (columns where they are cut) of a block of `extent` of them.
Result<Range> ShareOf(const Block& block, std::int64_t extent, TensorRank rank, const std::string& name) {
  if (block.cut == Cut::kWhole) return Range{0, extent};
  const std::int64_t units = extent / block.unit;
  if (units % rank.count == 0) {
    const Range share = Even(units, rank.rank, rank.count);
    return Range{share.begin * block.unit, share.size * block.unit};
  }
  if (block.cut == Cut::kKvHeads && rank.count % units == 0) {
    return Range{rank.rank * units / rank.count * block.unit, block.unit};
  }
  return Status::InvalidArgument(
      "does_not_divide", fmt::format("{}: {}{} do not divide among {} ranks{}", name, extent,
                                     block.unit == 1 ? "" : fmt::format(" = {} heads of {}", units, block.unit),
                                     rank.count, block.cut == Cut::kKvHeads ? ", nor the ranks among the heads" : ""));
}

// Puts together the local tensors of one engine rank.
class RankBuilder {
 public:
  RankBuilder(const ModelTable& table, const std::vector<TensorSpec>& specs, TensorRank rank, bool expert_parallel)
      : table_(table), specs_(specs), rank_(rank), expert_parallel_(expert_parallel) {}

  // The index of the local tensor.
  Result<int> Add(const TableTensor& tensor) {
    const auto local = static_cast<std::int32_t>(layout_.tensors.size());
    ASSIGN_OR_RETURN(const DType dtype, DTypeOfBlocks(tensor));
    Range experts{0, tensor.expert_count};
    const bool whole_experts = expert_parallel_ && tensor.expert_count > 0;
    if (whole_experts) {
      ASSIGN_OR_RETURN(experts, ShareOf({.cut = Cut::kRows}, tensor.expert_count, rank_, tensor.name + " experts"));
    }
    const TensorRank rank = whole_experts ? TensorRank{} : rank_;
    Dims shape;
    if (tensor.expert_count > 0) shape.push_back(experts.size);
    std::int64_t rows = 0;
    Dims inner;
    for (const Block& block : tensor.blocks) {
      ASSIGN_OR_RETURN(inner, AddBlock(tensor, block, experts, rank, rows));
      rows += inner[0];
    }
    shape.push_back(rows);
    for (int d = 1; d < inner.size(); ++d) shape.push_back(inner[d]);
    layout_.tensors.push_back({.name = tensor.name, .dtype = dtype, .shape = shape, .stride = {}});
    return local;
  }

  RankLayout Take() { return std::move(layout_); }

 private:
  const TensorSpec& SpecOf(std::int32_t logical) const { return specs_[static_cast<std::size_t>(logical)]; }

  Result<DType> DTypeOfBlocks(const TableTensor& tensor) const {
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

  // Adds the rows of `block`, `first_row` rows into the engine tensor. Returns the shape of this rank's share.
  Result<Dims> AddBlock(const TableTensor& tensor, const Block& block, Range experts, TensorRank rank,
                        std::int64_t first_row) {
    const TensorSpec& spec = SpecOf(block.logical);
    if (block.cut == Cut::kVocabulary) return AddVocabulary(spec, block.logical, rank);
    const int cut_dimension = block.cut == Cut::kColumns ? 1 : 0;
    Box logical_box = Box::Whole(spec.shape);
    logical_box.offset[0] = block.first_row;
    logical_box.extent[0] = block.rows;
    ASSIGN_OR_RETURN(const Range share, ShareOf(block, logical_box.extent[cut_dimension], rank, spec.name));
    logical_box.offset[cut_dimension] += share.begin;
    logical_box.extent[cut_dimension] = share.size;
    Box local_box = Box::Whole(logical_box.extent);
    local_box.offset[0] = first_row;
    if (tensor.expert_count == 0) {
      AddRow(local_box, block.logical, logical_box);
      return logical_box.extent;
    }
    for (std::int64_t e = 0; e < experts.size; ++e) {
      const auto expert = static_cast<std::int32_t>(experts.begin + e);
      AddRow(OfExpert(e, local_box), block.logical + expert * tensor.expert_step, logical_box);
    }
    return logical_box.extent;
  }

  static Box OfExpert(std::int64_t expert, const Box& box) {
    Box stacked{{expert}, {1}};
    for (int d = 0; d < box.dims(); ++d) {
      stacked.offset.push_back(box.offset[d]);
      stacked.extent.push_back(box.extent[d]);
    }
    return stacked;
  }

  // A rank whose whole range lies behind the last logical row holds nothing but padding.
  Result<Dims> AddVocabulary(const TensorSpec& spec, std::int32_t logical, TensorRank rank) {
    const std::int64_t padded = RoundUp(spec.shape[0], kVocabularyMultiple);
    ASSIGN_OR_RETURN(const Range share,
                     ShareOf({.cut = Cut::kRows}, padded, rank, fmt::format("{} padded to {}", spec.name, padded)));
    Dims shape = spec.shape;
    shape[0] = share.size;
    const std::int64_t rows = std::clamp<std::int64_t>(spec.shape[0] - share.begin, 0, share.size);
    Box held = Box::Whole(shape);
    held.extent[0] = rows;
    Box logical_box = held;
    logical_box.offset[0] = share.begin;
    if (rows > 0) AddRow(held, logical, logical_box);
    Box padding = Box::Whole(shape);
    padding.offset[0] = rows;
    padding.extent[0] -= rows;
    if (padding.extent[0] > 0) AddRow(padding, kFill, {});
    return shape;
  }

  void AddRow(const Box& local_box, std::int32_t logical, const Box& logical_box) {
    layout_.rows.push_back({static_cast<std::int32_t>(layout_.tensors.size()), local_box, logical, logical_box});
  }

  const ModelTable& table_;
  const std::vector<TensorSpec>& specs_;
  const TensorRank rank_;
  const bool expert_parallel_;
  RankLayout layout_;
};

bool IsHeld(const TableTensor& tensor, const ModelConfig& config, int stage, int stages) {
  switch (tensor.stage) {
    case Stage::kFirst:
      return stage == 0;
    case Stage::kLast:
      return stage == stages - 1;
    case Stage::kFirstAndLast:
      return stage == 0 || stage == stages - 1;
    case Stage::kOfLayer:
      break;
  }
  const Range layers = Even(config.layers, stage, stages);
  return tensor.layer >= layers.begin && tensor.layer < layers.begin + layers.size;
}

// One rank's layout; `tensors` gets its indices.
Result<RankLayout> MakeRank(const ModelConfig& config, const ModelTable& table, const std::vector<TensorSpec>& specs,
                            const ParallelLayout& parallel, int rank, EngineTensors& tensors) {
  tensors.layers.resize(static_cast<std::size_t>(config.layers));
  tensors.padded_vocabulary = RoundUp(config.vocabulary, kVocabularyMultiple);
  RankBuilder builder(table, specs, {rank % parallel.tensor, parallel.tensor}, parallel.expert_parallel);
  for (const TableTensor& tensor : table.tensors) {
    if (!IsHeld(tensor, config, rank / parallel.tensor, parallel.pipeline)) continue;
    ASSIGN_OR_RETURN(const int index, builder.Add(tensor));
    if (tensor.model_index != nullptr) tensors.*tensor.model_index = index;
    if (tensor.layer_index != nullptr)
      tensors.layers[static_cast<std::size_t>(tensor.layer)].*tensor.layer_index = index;
  }
  if (config.tied_head && rank / parallel.tensor == parallel.pipeline - 1) tensors.head = tensors.embedding;
  return builder.Take();
}

std::vector<TensorSpec> SpecsOf(const ModelTable& table, const DTypeOf& dtype_of) {
  std::vector<TensorSpec> specs;
  specs.reserve(table.logical.size());
  for (const LogicalTensor& tensor : table.logical) specs.push_back({tensor.name, dtype_of(tensor.name), tensor.shape});
  return specs;
}

}  // namespace

std::vector<TensorSpec> LogicalTensors(const ModelConfig& config, DType dtype) {
  const Result<ModelTable> table = MakeModelTable(config);
  CHECK(table.ok());
  return SpecsOf(*table, [dtype](std::string_view) { return dtype; });
}

Result<EngineLayout> MakeEngineLayout(const ModelConfig& config, const DTypeOf& dtype_of,
                                      const ParallelLayout& parallel) {
  RETURN_IF_ERROR(CheckParallelLayout(parallel));
  ASSIGN_OR_RETURN(const ModelTable table, MakeModelTable(config));
  if (parallel.pipeline > config.layers) {
    return Status::InvalidArgument("bad_parallel_layout",
                                   fmt::format("{} pipeline stages for {} layers", parallel.pipeline, config.layers));
  }
  EngineLayout engine;
  engine.layout.tensors = SpecsOf(table, dtype_of);
  if (const Status status = CheckTensors(engine.layout.tensors); !status.ok()) {
    return Status::InvalidArgument("bad_config", status.message());
  }
  for (int rank = 0; rank < parallel.ranks(); ++rank) {
    EngineTensors tensors;
    ASSIGN_OR_RETURN(RankLayout layout, MakeRank(config, table, engine.layout.tensors, parallel, rank, tensors));
    engine.layout.ranks.push_back(std::move(layout));
    if (rank == 0) engine.tensors = std::move(tensors);
  }
  if (const Status status = CheckLayout(engine.layout); !status.ok()) {
    return Status::InvalidArgument("bad_config", status.message());
  }
  return engine;
}

Result<EngineLayout> MakeEngineLayout(const ModelConfig& config, DType dtype, const ParallelLayout& parallel) {
  return MakeEngineLayout(
      config, [dtype](std::string_view) { return dtype; }, parallel);
}

}  // namespace bascule
