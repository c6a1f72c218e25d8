#include "model/model_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/architecture.h"
#include "model/size_check.h"

namespace bascule {
namespace {

// Tensors of one module: it adds logical tensors and the engine tensors made of them.
class TableBuilder {
 public:
  // Of a layer, or of the whole model where `prefix` is empty.
  TableBuilder(std::string prefix, Stage stage, std::int64_t layer, const WeightSchemes& schemes, ModelTable& table)
      : prefix_(std::move(prefix)), stage_(stage), layer_(layer), schemes_(schemes), table_(table) {}

  Status operator()(const Parameter& parameter) {
    const std::int32_t logical = AddLogical(parameter.name, parameter.shape, PlainDTypes(), kNoFamily);
    const std::string& name = parameter.engine_name.empty() ? parameter.name : parameter.engine_name;
    TableTensor& tensor = AddTensor(name, {BlockOf(logical, Cut::kWhole, 1)});
    tensor.layer_index = parameter.layer_index;
    tensor.model_index = parameter.model_index;
    return OkStatus();
  }

  Status operator()(const VocabularyMatrix& matrix) {
    const std::string name = matrix.name + ".weight";
    const std::int32_t logical = AddLogical(name, {matrix.vocabulary, matrix.hidden}, PlainDTypes(), kNoFamily);
    AddTensor(name, {BlockOf(logical, Cut::kVocabulary, 1)}).model_index = matrix.model_index;
    return OkStatus();
  }

  Status operator()(const Linear& linear) {
    std::vector<std::string> modules;
    for (const LinearPart& part : linear.parts) modules.push_back(prefix_ + part.name);
    if (!linear.stored_name.empty()) modules = {prefix_ + linear.stored_name};
    ASSIGN_OR_RETURN(const auto scheme, schemes_.Of(prefix_ + linear.engine_name, modules));
    const std::vector<std::int32_t> families = AddFamilies(modules, scheme);
    const std::vector<FamilyMember> members = scheme ? MembersOf(*scheme) : PlainMembers();
    for (const FamilyMember& member : members) {
      const LayerIndex index = &member == members.data() ? linear.weight_index : nullptr;
      RETURN_IF_ERROR(AddMember(linear, member, families, index));
    }
    if (!linear.bias) return OkStatus();
    return AddMember(linear, BiasMember(), std::vector(modules.size(), kNoFamily), linear.bias_index);
  }

  Status operator()(const Experts& experts) {
    std::vector<std::string> modules;  // per expert: gate, up, down
    for (std::int64_t expert = 0; expert < experts.count.value; ++expert) {
      for (const std::string& name : {experts.gate, experts.up, experts.down}) {
        modules.push_back(fmt::format("{}{}.{}.{}", prefix_, experts.name, expert, name));
      }
    }
    ASSIGN_OR_RETURN(const auto scheme, schemes_.Of(prefix_ + experts.engine_name, modules));
    const std::vector<std::int32_t> families = AddFamilies(modules, scheme);
    const std::vector<FamilyMember> members = scheme ? MembersOf(*scheme) : PlainMembers();
    const auto first = static_cast<std::int32_t>(table_.logical.size());
    for (std::size_t m = 0; m < modules.size(); ++m) {
      const bool down = m % 3 == 2;
      for (const FamilyMember& member : members) {
        AddLogical(fmt::format("{}.{}", std::string_view(modules[m]).substr(prefix_.size()), member.ending),
                   down ? member.ShapeOf(experts.hidden, experts.ffn) : member.ShapeOf(experts.ffn, experts.hidden),
                   member.dtypes, families[m]);
      }
    }
    AddStacks(experts, members, first);
    return OkStatus();
  }

  Status operator()(const OtherName& other) {
    const auto last = std::find_if(table_.logical.rbegin(), table_.logical.rend(),
                                   [&](const LogicalTensor& tensor) { return tensor.name == prefix_ + other.name; });
    CHECK(last != table_.logical.rend());
    const auto logical = static_cast<std::int32_t>(table_.logical.rend() - last) - 1;
    table_.spellings.push_back(TensorOf(other.other, {BlockOf(logical, Cut::kWhole, 1)}));
    return OkStatus();
  }

 private:
  static constexpr std::int32_t kNoFamily = -1;

  std::int32_t AddLogical(const std::string& name, const std::vector<Extent>& shape, std::span<const DType> dtypes,
                          std::int32_t family) {
    const auto logical = static_cast<std::int32_t>(table_.logical.size());
    table_.logical.push_back({prefix_ + name, DimsOf(shape), RuleOf(shape), dtypes, family});
    if (family != kNoFamily) table_.families[static_cast<std::size_t>(family)].members.push_back(logical);
    return logical;
  }

  // One family a module, in the same order.
  std::vector<std::int32_t> AddFamilies(const std::vector<std::string>& modules,
                                        const std::optional<WeightScheme>& scheme) {
    std::vector<std::int32_t> families(modules.size(), kNoFamily);
    for (std::size_t m = 0; m < modules.size() && scheme; ++m) {
      families[m] = static_cast<std::int32_t>(table_.families.size());
      table_.families.push_back({modules[m], *scheme, {}});
    }
    return families;
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

  // All of a member, cut as its weight of `rows` by `columns` is, where it has what is cut.
  Block MemberBlock(std::int32_t logical, const FamilyMember& member, Cut cut, std::int64_t unit, std::int64_t rows,
                    std::int64_t columns) const {
    const bool by_columns = cut == Cut::kColumns;
    Block block = BlockOf(logical, cut, unit);
    if (by_columns ? !member.HasColumns() : !member.HasRows()) block.cut = Cut::kWhole;
    block.grain = by_columns ? member.columns : member.rows;
    block.weight_extent = by_columns ? columns : rows;
    return block;
  }

  // The engine tensor of one member of every part.
  Status AddMember(const Linear& linear, const FamilyMember& member, const std::vector<std::int32_t>& families,
                   LayerIndex index) {
    const std::string ending = fmt::format(".{}", member.ending);
    std::vector<Block> blocks;
    if (linear.stored_name.empty()) {
      for (std::size_t p = 0; p < linear.parts.size(); ++p) {
        const LinearPart& part = linear.parts[p];
        const std::int32_t logical =
            AddLogical(part.name + ending, member.ShapeOf(part.rows, linear.columns), member.dtypes, families[p]);
        blocks.push_back(MemberBlock(logical, member, part.cut, part.unit, part.rows.value, linear.columns.value));
      }
    } else {
      ASSIGN_OR_RETURN(blocks, StoredAsOne(linear, member, families.front()));
    }
    AddTensor(linear.engine_name + ending, std::move(blocks)).layer_index = index;
    return OkStatus();
  }

  // Blocks of the one logical tensor that holds a member of all parts.
  Result<std::vector<Block>> StoredAsOne(const Linear& linear, const FamilyMember& member, std::int32_t family) {
    Extent rows = linear.parts.front().rows;
    for (std::size_t p = 1; p < linear.parts.size(); ++p) rows = rows + linear.parts[p].rows;
    const std::int32_t logical = AddLogical(fmt::format("{}.{}", linear.stored_name, member.ending),
                                            member.ShapeOf(rows, linear.columns), member.dtypes, family);
    if (!member.HasRows()) return std::vector<Block>{BlockOf(logical, Cut::kWhole, 1)};
    std::vector<Block> blocks;
    std::int64_t first_row = 0;
    for (const LinearPart& part : linear.parts) {
      Block block = MemberBlock(logical, member, part.cut, part.unit, part.rows.value, linear.columns.value);
      block.first_row = first_row / member.rows;
      block.rows = (part.rows.value + member.rows - 1) / member.rows;
      if (first_row % member.rows != 0) {
        return Status::InvalidArgument(
            "quantization_block_cut",
            fmt::format("{}: rows of {} begin at {}, inside a block of {}",
                        table_.logical[static_cast<std::size_t>(logical)].name, part.name, first_row, member.rows));
      }
      blocks.push_back(block);
      first_row += part.rows.value;
    }
    return blocks;
  }

  // The engine's tensors of all experts. Logical tensors from `first` on: per expert its gate, up and down, and of each
  // all members.
  void AddStacks(const Experts& experts, const std::vector<FamilyMember>& members, std::int32_t first) {
    const auto step = static_cast<std::int32_t>(members.size());
    const std::int64_t ffn = experts.ffn.value;
    const std::int64_t hidden = experts.hidden.value;
    for (std::int32_t m = 0; m < step; ++m) {
      const FamilyMember& member = members[static_cast<std::size_t>(m)];
      const Block gate = MemberBlock(first + m, member, Cut::kRows, 1, ffn, hidden);
      const Block up = MemberBlock(first + step + m, member, Cut::kRows, 1, ffn, hidden);
      const Block down = MemberBlock(first + 2 * step + m, member, Cut::kColumns, 1, hidden, ffn);
      const auto stack = [&](const std::string& name, std::vector<Block> blocks) {
        return TensorOf(name, std::move(blocks), experts.count.value, 3 * step);
      };
      table_.tensors.push_back(stack(fmt::format("{}.w13_{}", experts.engine_name, member.ending), {gate, up}));
      table_.tensors.back().layer_index = m == 0 ? experts.gate_up_index : nullptr;
      table_.tensors.push_back(stack(fmt::format("{}.w2_{}", experts.engine_name, member.ending), {down}));
      table_.tensors.back().layer_index = m == 0 ? experts.down_index : nullptr;
      if (step > 1) continue;  // quantised experts are not stored in one
      for (const std::string& module : experts.stacked) {
        for (const std::string ending : {"", ".weight"}) {
          table_.spellings.push_back(stack(module + ".gate_up_proj" + ending, {gate, up}));
          table_.spellings.push_back(stack(module + ".gate_proj" + ending, {gate}));
          table_.spellings.push_back(stack(module + ".up_proj" + ending, {up}));
          table_.spellings.push_back(stack(module + ".down_proj" + ending, {down}));
        }
      }
    }
  }

  const std::string prefix_;
  const Stage stage_;
  const std::int64_t layer_;
  const WeightSchemes& schemes_;
  ModelTable& table_;
};

VocabularyMatrix VocabularyOf(const ModelConfig& config, std::string name, ModelIndex index) {
  return {.name = std::move(name),
          .vocabulary = Named("vocabulary", config.vocabulary),
          .hidden = Named("hidden", config.hidden),
          .model_index = index};
}

// The scale of the KV cache's keys or values, under the names that programs have given it.
Status AddKvScale(std::string_view kind, TableBuilder& builder) {
  const std::string name = fmt::format("self_attn.{}_scale", kind);
  RETURN_IF_ERROR(builder(Parameter{.name = name, .shape = {Named("one for all", 1)}}));
  RETURN_IF_ERROR(builder(OtherName{name, fmt::format("self_attn.attn.{}_scale", kind)}));
  RETURN_IF_ERROR(builder(OtherName{name, fmt::format("self_attn.{}_proj.{}_scale", kind, kind)}));
  return builder(OtherName{name, fmt::format("self_attn.{}_proj.output_scale", kind)});
}

}  // namespace

Result<ModelTable> MakeModelTable(const ModelConfig& config) {
  RETURN_IF_ERROR(CheckSizes(config));
  ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(config.architecture));
  ASSIGN_OR_RETURN(const WeightSchemes schemes, WeightSchemes::Make(config.quantization));
  ModelTable table;
  RETURN_IF_ERROR(TableBuilder("", config.tied_head ? Stage::kFirstAndLast : Stage::kFirst, 0, schemes,
                               table)(VocabularyOf(config, "model.embed_tokens", &EngineTensors::embedding)));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    TableBuilder builder(fmt::format("model.layers.{}.", layer), Stage::kOfLayer, layer, schemes, table);
    for (const Module& module : architecture->layer(config, layer)) RETURN_IF_ERROR(std::visit(builder, module));
    if (!config.quantization.kv_scales) continue;
    for (const std::string_view kind : {"k", "v"}) RETURN_IF_ERROR(AddKvScale(kind, builder));
  }
  TableBuilder last("", Stage::kLast, 0, schemes, table);
  RETURN_IF_ERROR(last(Parameter{.name = "model.norm.weight",
                                 .shape = {Named("hidden", config.hidden)},
                                 .model_index = &EngineTensors::final_norm}));
  if (!config.tied_head) RETURN_IF_ERROR(last(VocabularyOf(config, "lm_head", &EngineTensors::head)));
  return table;
}

}  // namespace bascule
