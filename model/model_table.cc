#include "model/model_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/architecture.h"
#include "model/size_check.h"

namespace bascule {
namespace {

// Tensors of one module: it adds logical tensors and the engine tensors made of them.
class TableBuilder {
 public:
  // Of a layer, or of the whole model where `prefix` is empty.
  TableBuilder(std::string prefix, Stage stage, std::int64_t layer, ModelTable& table)
      : prefix_(std::move(prefix)), stage_(stage), layer_(layer), table_(table) {}

  void operator()(const Parameter& parameter) {
    const std::int32_t logical = AddLogical(parameter.name, parameter.shape);
    const std::string& name = parameter.engine_name.empty() ? parameter.name : parameter.engine_name;
    TableTensor& tensor = AddTensor(name, {BlockOf(logical, Cut::kWhole, 1)});
    tensor.layer_index = parameter.layer_index;
    tensor.model_index = parameter.model_index;
  }

  void operator()(const VocabularyMatrix& matrix) {
    const std::string name = matrix.name + ".weight";
    const std::int32_t logical = AddLogical(name, {matrix.vocabulary, matrix.hidden});
    AddTensor(name, {BlockOf(logical, Cut::kVocabulary, 1)}).model_index = matrix.model_index;
  }

  void operator()(const Linear& linear) {
    AddRows(linear, ".weight", /*with_columns=*/true).layer_index = linear.weight_index;
    if (linear.bias) AddRows(linear, ".bias", /*with_columns=*/false).layer_index = linear.bias_index;
  }

  void operator()(const Experts& experts) {
    const auto first = static_cast<std::int32_t>(table_.logical.size());
    for (std::int64_t expert = 0; expert < experts.count.value; ++expert) {
      const std::string name = fmt::format("{}.{}.", experts.name, expert);
      AddLogical(name + experts.gate + ".weight", {experts.ffn, experts.hidden});
      AddLogical(name + experts.up + ".weight", {experts.ffn, experts.hidden});
      AddLogical(name + experts.down + ".weight", {experts.hidden, experts.ffn});
    }
    const Block gate = BlockOf(first, Cut::kRows, 1);
    const Block up = BlockOf(first + 1, Cut::kRows, 1);
    const Block down = BlockOf(first + 2, Cut::kColumns, 1);
    const auto stack = [&](const std::string& name, std::vector<Block> blocks) {
      return TensorOf(name, std::move(blocks), experts.count.value, /*expert_step=*/3);
    };
    table_.tensors.push_back(stack(experts.engine_name + ".w13_weight", {gate, up}));
    table_.tensors.back().layer_index = experts.gate_up_index;
    table_.tensors.push_back(stack(experts.engine_name + ".w2_weight", {down}));
    table_.tensors.back().layer_index = experts.down_index;
    for (const std::string& module : experts.stacked) {
      for (const std::string ending : {"", ".weight"}) {
        table_.spellings.push_back(stack(module + ".gate_up_proj" + ending, {gate, up}));
        table_.spellings.push_back(stack(module + ".gate_proj" + ending, {gate}));
        table_.spellings.push_back(stack(module + ".up_proj" + ending, {up}));
        table_.spellings.push_back(stack(module + ".down_proj" + ending, {down}));
      }
    }
  }

  void operator()(const OtherName& other) {
    const auto last = std::find_if(table_.logical.rbegin(), table_.logical.rend(),
                                   [&](const LogicalTensor& tensor) { return tensor.name == prefix_ + other.name; });
    CHECK(last != table_.logical.rend());
    const auto logical = static_cast<std::int32_t>(table_.logical.rend() - last) - 1;
    table_.spellings.push_back(TensorOf(other.other, {BlockOf(logical, Cut::kWhole, 1)}));
  }

 private:
  std::int32_t AddLogical(const std::string& name, const std::vector<Extent>& shape) {
    table_.logical.push_back({prefix_ + name, DimsOf(shape), RuleOf(shape)});
    return static_cast<std::int32_t>(table_.logical.size()) - 1;
  }

  TableTensor TensorOf(const std::string& name, std::vector<Block> blocks, std::int64_t expert_count = 0,
                       std::int32_t expert_step = 0) const {
    return {.name = prefix_ + name,
            .blocks = std::move(blocks),
            .expert_count = expert_count,
            .expert_step = expert_step,
            .stage = stage_,
            .layer = layer_};
  }

  TableTensor& AddTensor(const std::string& name, std::vector<Block> blocks) {
    table_.tensors.push_back(TensorOf(name, std::move(blocks)));
    return table_.tensors.back();
  }

  // All of a logical tensor.
  Block BlockOf(std::int32_t logical, Cut cut, std::int64_t unit) const {
    return {logical, 0, table_.logical[static_cast<std::size_t>(logical)].shape[0], cut, unit};
  }

  // The engine tensor of a linear's weights or biases. A bias has no columns to cut: it is whole where they are.
  TableTensor& AddRows(const Linear& linear, const std::string& ending, bool with_columns) {
    const auto shape = [&](const Extent& rows) {
      return with_columns ? std::vector<Extent>{rows, linear.columns} : std::vector<Extent>{rows};
    };
    const bool stored_as_one = !linear.stored_name.empty();
    std::int32_t logical = -1;
    if (stored_as_one) {
      Extent rows = linear.parts.front().rows;
      for (std::size_t p = 1; p < linear.parts.size(); ++p) rows = rows + linear.parts[p].rows;
      logical = AddLogical(linear.stored_name + ending, shape(rows));
    }
    std::vector<Block> blocks;
    std::int64_t first_row = 0;
    for (const LinearPart& part : linear.parts) {
      if (!stored_as_one) logical = AddLogical(part.name + ending, shape(part.rows));
      const bool whole = part.cut == Cut::kColumns && !with_columns;
      blocks.push_back({logical, first_row, part.rows.value, whole ? Cut::kWhole : part.cut, part.unit});
      if (stored_as_one) first_row += part.rows.value;
    }
    return AddTensor(linear.engine_name + ending, std::move(blocks));
  }

  const std::string prefix_;
  const Stage stage_;
  const std::int64_t layer_;
  ModelTable& table_;
};

void AddVocabularyMatrix(const ModelConfig& config, std::string name, ModelIndex index, Stage stage,
                         ModelTable& table) {
  TableBuilder("", stage, 0, table)(VocabularyMatrix{.name = std::move(name),
                                                     .vocabulary = Named("vocabulary", config.vocabulary),
                                                     .hidden = Named("hidden", config.hidden),
                                                     .model_index = index});
}

}  // namespace

Result<ModelTable> MakeModelTable(const ModelConfig& config) {
  RETURN_IF_ERROR(CheckSizes(config));
  ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(config.architecture));
  ModelTable table;
  AddVocabularyMatrix(config, "model.embed_tokens", &EngineTensors::embedding,
                      config.tied_head ? Stage::kFirstAndLast : Stage::kFirst, table);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    TableBuilder builder(fmt::format("model.layers.{}.", layer), Stage::kOfLayer, layer, table);
    for (const Module& module : architecture->layer(config, layer)) std::visit(builder, module);
  }
  TableBuilder("", Stage::kLast, 0, table)(Parameter{.name = "model.norm.weight",
                                                     .shape = {Named("hidden", config.hidden)},
                                                     .model_index = &EngineTensors::final_norm});
  if (!config.tied_head) AddVocabularyMatrix(config, "lm_head", &EngineTensors::head, Stage::kLast, table);
  return table;
}

}  // namespace bascule
