#include "model/engine_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked_math.h"
#include "model/model_table.h"
#include "model/rank_builder.h"

namespace bascule {
namespace {

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
  const Range layers = EvenRange(config.layers, stage, stages);
  return tensor.layer >= layers.begin && tensor.layer < layers.begin + layers.size;
}

// One rank's layout; `tensors` gets its indices.
Result<RankLayout> MakeRank(const ModelConfig& config, const ModelTable& table, const std::vector<TensorSpec>& specs,
                            const ParallelLayout& parallel, int rank, EngineTensors& tensors) {
  tensors.layers.resize(static_cast<std::size_t>(config.layers));
  tensors.padded_vocabulary = RoundUp(config.vocabulary, kVocabularyMultiple);
  RankBuilder builder(specs, {rank % parallel.tensor, parallel.tensor}, parallel.expert_parallel);
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

std::vector<QuantizationFamily> FamiliesOf(const ModelTable& table) {
  std::vector<QuantizationFamily> families;
  for (const TensorFamily& family : table.families) {
    QuantizationFamily& added = families.emplace_back();
    added.name = family.name;
    added.scheme = family.scheme.ToString();
    for (const std::int32_t member : family.members) {
      added.members.push_back(table.logical[static_cast<std::size_t>(member)].name);
    }
  }
  std::ranges::sort(families, {}, &QuantizationFamily::name);
  return families;
}

}  // namespace

Result<std::vector<QuantizationFamily>> QuantizationFamilies(const ModelConfig& config) {
  ASSIGN_OR_RETURN(const ModelTable table, MakeModelTable(config));
  return FamiliesOf(table);
}

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
  engine.families = FamiliesOf(table);
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
