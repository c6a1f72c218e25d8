#include "trainer_side/layouts/megatron_layout.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "model/model_table.h"
#include "trainer_side/layouts/megatron_rank_internal.h"

namespace bascule {
namespace {

Status BadTrainerLayout(std::string message) {
  return Status::InvalidArgument("bad_trainer_layout", std::move(message));
}

// How tensor-parallel ranks share a Megatron tensor.
enum class Share : std::uint8_t {
  kWhole,
  kRows,         // of each of its parts
  kQueryGroups,  // of the groups, one behind the other
  kColumns,
  kApart,  // whole, and the parts are tensors of their own
};

struct Role {
  LayerIndex index;
  std::string_view name;  // in a layer
  Share share;
};

using Of = EngineLayerTensors;
constexpr std::array kRoles = {
    Role{&Of::input_norm, "self_attention.linear_qkv.layer_norm_weight", Share::kWhole},
    Role{&Of::qkv, "self_attention.linear_qkv.weight", Share::kQueryGroups},
    Role{&Of::qkv_bias, "self_attention.linear_qkv.bias", Share::kQueryGroups},
    Role{&Of::q_norm, "self_attention.q_layernorm.weight", Share::kWhole},
    Role{&Of::k_norm, "self_attention.k_layernorm.weight", Share::kWhole},
    Role{&Of::out, "self_attention.linear_proj.weight", Share::kColumns},
    Role{&Of::out_bias, "self_attention.linear_proj.bias", Share::kWhole},
    Role{&Of::post_attention_norm, "mlp.linear_fc1.layer_norm_weight", Share::kWhole},
    Role{&Of::pre_ffn_norm, "mlp.linear_fc1.layer_norm_weight", Share::kWhole},
    Role{&Of::post_ffn_norm, "mlp.linear_fc2.post_layernorm.weight", Share::kWhole},
    Role{&Of::gate_up, "mlp.linear_fc1.weight", Share::kRows},
    Role{&Of::gate_up_bias, "mlp.linear_fc1.bias", Share::kRows},
    Role{&Of::down, "mlp.linear_fc2.weight", Share::kColumns},
    Role{&Of::down_bias, "mlp.linear_fc2.bias", Share::kWhole},
    Role{&Of::router, "mlp.router.weight", Share::kWhole},
    Role{&Of::router_bias, "mlp.router.expert_bias", Share::kWhole},
    Role{&Of::experts_gate_up, "mlp.experts.linear_fc1.weight", Share::kRows},
    Role{&Of::experts_down, "mlp.experts.linear_fc2.weight", Share::kColumns},
    Role{&Of::shared_gate_up, "mlp.shared_experts.linear_fc1.weight", Share::kRows},
    Role{&Of::shared_down, "mlp.shared_experts.linear_fc2.weight", Share::kColumns},
    Role{&Of::latent_in, "weight", Share::kApart},
    Role{&Of::latent_in_bias, "bias", Share::kApart},
    Role{&Of::q_latent_norm, "self_attention.linear_q_up_proj.layer_norm_weight", Share::kWhole},
    Role{&Of::kv_latent_norm, "self_attention.linear_kv_up_proj.layer_norm_weight", Share::kWhole},
    Role{&Of::q_from_latent, "self_attention.linear_q_up_proj.weight", Share::kRows},
    Role{&Of::kv_from_latent, "self_attention.linear_kv_up_proj.weight", Share::kRows},
};

// Layers [first, first + count) of a model chunk.
struct ChunkLayers {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

Status CheckSizes(const ModelConfig& config, const MegatronParallel& parallel, int ranks) {
  for (const int size : {parallel.tensor, parallel.pipeline, parallel.virtual_stages, parallel.expert,
                         parallel.ExpertTensor(), parallel.vocabulary_multiple, ranks}) {
    constexpr int kSizeMax = 1 << 20;
    if (size < 1 || size > kSizeMax) return BadTrainerLayout(fmt::format("{} of {} ranks", parallel.ToString(), ranks));
  }
  const std::int64_t stage_ranks = ranks / parallel.pipeline;
  const std::int64_t expert_ranks = std::int64_t{parallel.expert} * parallel.ExpertTensor();
  if (ranks % parallel.pipeline != 0 || stage_ranks % parallel.tensor != 0 || stage_ranks % expert_ranks != 0) {
    return BadTrainerLayout(fmt::format("{} ranks are no multiple of {}", ranks, parallel.ToString()));
  }
  if (config.experts.count == 0 && parallel.expert > 1) {
    return BadTrainerLayout(fmt::format("{} of a model without experts", parallel.ToString()));
  }
  if (config.experts.count % parallel.expert != 0) {
    return Status::InvalidArgument(
        "does_not_divide", fmt::format("{} experts do not divide among {}", config.experts.count, parallel.ToString()));
  }
  return OkStatus();
}

// The layers of every model chunk, in the order of the model.
Result<std::vector<ChunkLayers>> LayersOfChunks(std::int64_t layers, const MegatronParallel& parallel) {
  const std::int64_t first = parallel.first_stage_layers;
  const std::int64_t last = parallel.last_stage_layers;
  const bool uneven = first != 0 || last != 0;
  if (parallel.virtual_stages > 1 && (uneven || parallel.pipeline == 1)) {
    return BadTrainerLayout(fmt::format("{} first={} last={}", parallel.ToString(), first, last));
  }
  const std::int64_t chunks = std::int64_t{parallel.pipeline} * parallel.virtual_stages;
  const std::int64_t even_chunks = chunks - (first != 0 ? 1 : 0) - (last != 0 ? 1 : 0);
  const std::int64_t rest = layers - first - last;
  if (first < 0 || last < 0 || rest < even_chunks || even_chunks < 0 ||
      (even_chunks == 0 ? rest != 0 : rest % even_chunks != 0)) {
    return BadTrainerLayout(
        fmt::format("{} layers do not divide into {} first={} last={}", layers, parallel.ToString(), first, last));
  }
  std::vector<ChunkLayers> result;
  std::int64_t begin = 0;
  for (std::int64_t c = 0; c < chunks; ++c) {
    std::int64_t count = even_chunks == 0 ? 0 : rest / even_chunks;
    if (c == 0 && first != 0) count = first;
    if (c == chunks - 1 && last != 0) count = last;
    result.push_back({begin, count});
    begin += count;
  }
  return result;
}

class MegatronBuilder {
 public:
  MegatronBuilder(const ModelConfig& config, const ModelTable& table, std::vector<ChunkLayers> chunks,
                  const MegatronParallel& parallel, std::vector<TensorSpec> tensors)
      : config_(config), table_(table), chunks_(std::move(chunks)), parallel_(parallel), tensors_(std::move(tensors)) {}

  // Finds the table's logical tensors among the trainer's.
  Status Match() {
    std::unordered_map<std::string_view, std::int32_t> index_of;
    for (std::size_t t = 0; t < tensors_.size(); ++t) index_of[tensors_[t].name] = static_cast<std::int32_t>(t);
    for (const LogicalTensor& logical : table_.logical) {
      const auto found = index_of.find(logical.name);
      if (found == index_of.end()) return Status::InvalidArgument("tensor_missing", logical.name);
      const TensorSpec& spec = tensors_[static_cast<std::size_t>(found->second)];
      if (spec.shape != logical.shape) {
        return Status::InvalidArgument("shape_mismatch",
                                       fmt::format("{} is {}, not {} = {}", spec.name, spec.shape.ToString(),
                                                   logical.shape.ToString(), logical.rule));
      }
      index_of_logical_.push_back(found->second);
      index_of.erase(found);
    }
    for (const TensorSpec& spec : tensors_) {
      if (index_of.contains(spec.name)) unknown_.push_back(index_of[spec.name]);
    }
    return OkStatus();
  }

  Result<Layout> Make(int ranks) {
    Layout layout{.tensors = tensors_, .ranks = {}};
    for (int r = 0; r < ranks; ++r) {
      ASSIGN_OR_RETURN(RankLayout rank, RankOf(r, ranks / parallel_.pipeline));
      layout.ranks.push_back(std::move(rank));
    }
    for (const std::int32_t logical : unknown_) HoldWhole(logical, layout);
    RETURN_IF_ERROR(CheckLayout(layout));
    return layout;
  }

 private:
  static void HoldWhole(std::int32_t logical, Layout& layout) {
    const TensorSpec& spec = layout.tensors[static_cast<std::size_t>(logical)];
    const Box whole = Box::Whole(spec.shape);
    RankLayout& rank = layout.ranks.front();
    rank.rows.push_back({.local = static_cast<std::int32_t>(rank.tensors.size()),
                         .local_box = whole,
                         .logical = logical,
                         .logical_box = whole});
    rank.tensors.push_back({.name = spec.name, .dtype = spec.dtype, .shape = spec.shape, .stride = {}});
  }

  Result<RankLayout> RankOf(int rank, int stage_ranks) {
    const int in_stage = rank % stage_ranks;
    const int expert_tensor = parallel_.ExpertTensor();
    dense_ = {in_stage % parallel_.tensor, parallel_.tensor};
    expert_cut_ = {in_stage % expert_tensor, expert_tensor};
    expert_ = in_stage / expert_tensor % parallel_.expert;
    MegatronRank made(tensors_);
    for (int chunk = 0; chunk < parallel_.virtual_stages; ++chunk) {
      const int number = chunk * parallel_.pipeline + rank / stage_ranks;
      const std::string prefix = parallel_.virtual_stages == 1 ? "" : fmt::format("model{}.", chunk);
      for (const TableTensor& tensor : table_.tensors) RETURN_IF_ERROR(AddTo(made, tensor, number, prefix));
    }
    return made.Take();
  }

  // Adds what chunk `number` has of a tensor.
  Status AddTo(MegatronRank& rank, const TableTensor& tensor, int number, const std::string& prefix) const {
    const bool first = number == 0;
    const bool last = number == std::ssize(chunks_) - 1;
    if (tensor.stage == Stage::kOfLayer) {
      const ChunkLayers& layers = chunks_[static_cast<std::size_t>(number)];
      if (tensor.layer < layers.first || tensor.layer >= layers.first + layers.count) return OkStatus();
      return AddOfLayer(rank, tensor, fmt::format("{}decoder.layers.{}.", prefix, tensor.layer - layers.first));
    }
    const std::int32_t logical = LogicalOf(tensor.blocks.front().logical);
    if (tensor.model_index == &EngineTensors::final_norm) {
      return last ? AddWhole(rank, prefix + "decoder.final_layernorm.weight", tensor) : OkStatus();
    }
    const bool is_head = tensor.model_index == &EngineTensors::head;
    const bool tied = tensor.stage == Stage::kFirstAndLast;
    if (first && !is_head) {
      rank.AddVocabulary(prefix + "embedding.word_embeddings.weight", logical, parallel_.vocabulary_multiple, dense_);
    }
    if (last && (is_head || (tied && !first))) {
      rank.AddVocabulary(prefix + "output_layer.weight", logical, parallel_.vocabulary_multiple, dense_);
    }
    return OkStatus();
  }

  Status AddOfLayer(MegatronRank& rank, const TableTensor& tensor, const std::string& prefix) const {
    for (const Role& role : kRoles) {
      if (role.index != tensor.layer_index) continue;
      if (tensor.expert_count > 0) return AddExperts(rank, tensor, role, prefix);
      if (role.share == Share::kApart) return AddApart(rank, tensor, role, prefix);
      const std::string name = prefix + std::string(NameOf(role, tensor.layer));
      if (role.share == Share::kWhole) return AddWhole(rank, name, tensor);
      if (role.share == Share::kColumns) {
        return rank.AddColumns(name, LogicalOf(tensor.blocks.front().logical), dense_);
      }
      if (role.share == Share::kRows) return rank.AddPiecesCut(name, PiecesOf(tensor), dense_);
      return rank.AddCutOfPieces(name, QueryGroupsOf(tensor), dense_);
    }
    return Status::Unimplemented("unsupported_model", fmt::format("no Megatron name for {}", tensor.name));
  }

  // Norms belong to the linear behind them, where there is just one.
  std::string_view NameOf(const Role& role, std::int64_t layer) const {
    const bool latent = config_.latent.kv_rank > 0;
    if (role.index == &Of::input_norm && latent) return "input_layernorm.weight";
    if (role.index == &Of::q_from_latent && config_.latent.query_rank == 0)
      return "self_attention.linear_q_proj.weight";
    if (role.index != &Of::post_attention_norm) return role.name;
    if (HasNormsBehind(layer)) return "self_attention.linear_proj.post_layernorm.weight";
    return config_.HasExperts(layer) ? "pre_mlp_layernorm.weight" : role.name;
  }

  // Whether the layer has a norm behind the attention as well as one before its feed-forward network (Gemma).
  bool HasNormsBehind(std::int64_t layer) const {
    for (const TableTensor& tensor : table_.tensors) {
      if (tensor.layer == layer && tensor.layer_index == &Of::pre_ffn_norm) return true;
    }
    return false;
  }

  std::int32_t LogicalOf(std::int32_t of_table) const { return index_of_logical_[static_cast<std::size_t>(of_table)]; }

  std::vector<RowPiece> PiecesOf(const TableTensor& tensor, std::int64_t expert = 0) const {
    std::vector<RowPiece> pieces;
    for (const Block& block : tensor.blocks) {
      const auto step = static_cast<std::int32_t>(expert) * tensor.expert_step;
      pieces.push_back({LogicalOf(block.logical + step), block.first_row, block.rows});
    }
    return pieces;
  }

  // The queries of a group, its key and its value; then the next group's.
  std::vector<RowPiece> QueryGroupsOf(const TableTensor& tensor) const {
    const std::int64_t groups = config_.kv_heads;
    std::vector<RowPiece> pieces;
    for (std::int64_t group = 0; group < groups; ++group) {
      for (const Block& block : tensor.blocks) {
        const std::int64_t rows = block.rows / groups;
        pieces.push_back({LogicalOf(block.logical), block.first_row + group * rows, rows});
      }
    }
    return pieces;
  }

  Status AddWhole(MegatronRank& rank, std::string name, const TableTensor& tensor) const {
    return rank.AddPieces(std::move(name), PiecesOf(tensor));
  }

  // The down projections of latent attention, which engines fuse: keys with values last, queries before them.
  Status AddApart(MegatronRank& rank, const TableTensor& tensor, const Role& role, const std::string& prefix) const {
    const std::vector<RowPiece> pieces = PiecesOf(tensor);
    for (const RowPiece& piece : pieces) {
      const char* const what = &piece == &pieces.back() ? "linear_kv_down_proj" : "linear_q_down_proj";
      RETURN_IF_ERROR(
          rank.AddPieces(fmt::format("{}self_attention.{}.{}", prefix, what, role.name), std::span(&piece, 1)));
    }
    return OkStatus();
  }

  Status AddExperts(MegatronRank& rank, const TableTensor& tensor, const Role& role, const std::string& prefix) const {
    const std::int64_t count = tensor.expert_count / parallel_.expert;
    for (std::int64_t e = 0; e < count; ++e) {
      const std::string name = fmt::format("{}{}{}", prefix, role.name, e);
      const std::vector<RowPiece> pieces = PiecesOf(tensor, expert_ * count + e);
      RETURN_IF_ERROR(role.share == Share::kColumns ? rank.AddColumns(name, pieces.front().logical, expert_cut_)
                                                    : rank.AddPiecesCut(name, pieces, expert_cut_));
    }
    return OkStatus();
  }

  const ModelConfig& config_;
  const ModelTable& table_;
  const std::vector<ChunkLayers> chunks_;
  const MegatronParallel parallel_;
  const std::vector<TensorSpec> tensors_;
  std::vector<std::int32_t> index_of_logical_;  // table's logical tensor: index into tensors_
  std::vector<std::int32_t> unknown_;           // tensors that the model does not have
  CutRank dense_, expert_cut_;                  // of the rank that is being made
  int expert_ = 0;
};

}  // namespace

std::string MegatronParallel::ToString() const {
  return fmt::format("tp={},pp={},ep={},etp={},vpp={}", tensor, pipeline, expert, ExpertTensor(), virtual_stages);
}

Result<Layout> MegatronLayout(const ModelConfig& config, const std::vector<TensorSpec>& tensors,
                              const MegatronParallel& parallel, int ranks) {
  RETURN_IF_ERROR(CheckTensors(tensors));
  if (!config.quantization.method.empty()) {
    return Status::Unimplemented("unsupported_quantization",
                                 fmt::format("{}: a trainer holds plain weights", config.quantization.method));
  }
  ASSIGN_OR_RETURN(const ModelTable table, MakeModelTable(config));
  RETURN_IF_ERROR(CheckSizes(config, parallel, ranks));
  ASSIGN_OR_RETURN(std::vector<ChunkLayers> chunks, LayersOfChunks(config.layers, parallel));
  MegatronBuilder builder(config, table, std::move(chunks), parallel, tensors);
  RETURN_IF_ERROR(builder.Match());
  return builder.Make(ranks);
}

}  // namespace bascule
