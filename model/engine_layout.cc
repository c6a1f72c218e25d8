#include "model/engine_layout.h"

#include <fmt/format.h>

#include <array>

#include "base/checked_math.h"

namespace bascule {
namespace {

constexpr std::int64_t kVocabularyMultiple = 64;
constexpr std::int64_t kLayersMax = 10000;
constexpr std::int64_t kSizeMax = std::int64_t{1} << 31;

Status BadConfig(std::string message) { return Status::InvalidArgument("bad_config", std::move(message)); }

std::int64_t QueryRows(const ModelConfig& config) { return config.query_heads * config.head_size; }
std::int64_t KvRows(const ModelConfig& config) { return config.kv_heads * config.head_size; }

// Afterwards every sum and product of two sizes fits; tensors are checked on their own.
Status CheckSizes(const ModelConfig& config) {
  const std::array<std::pair<std::string_view, std::int64_t>, 7> sizes = {{{"layers", config.layers},
                                                                           {"hidden", config.hidden},
                                                                           {"query_heads", config.query_heads},
                                                                           {"kv_heads", config.kv_heads},
                                                                           {"head_size", config.head_size},
                                                                           {"ffn", config.ffn},
                                                                           {"vocabulary", config.vocabulary}}};
  for (const auto& [name, size] : sizes) {
    if (size < 1 || size > kSizeMax) return BadConfig(fmt::format("{}: got {}, want 1 to {}", name, size, kSizeMax));
  }
  if (config.layers > kLayersMax) return BadConfig(fmt::format("layers: got {}, most {}", config.layers, kLayersMax));
  if (QueryRows(config) > kSizeMax || KvRows(config) > kSizeMax) {
    return BadConfig(fmt::format("heads: {} or {} of size {} are more than {} rows", config.query_heads,
                                 config.kv_heads, config.head_size, kSizeMax));
  }
  if (config.query_heads % config.kv_heads != 0) {
    return BadConfig(
        fmt::format("query_heads: {} is not a multiple of kv_heads {}", config.query_heads, config.kv_heads));
  }
  return OkStatus();
}

std::string LayerName(std::int64_t layer, std::string_view part) {
  return fmt::format("model.layers.{}.{}", layer, part);
}

// Adds local tensors to a layout with one rank. Logical tensors are taken by position, in the order of LogicalTensors.
class EngineLayoutBuilder {
 public:
  EngineLayoutBuilder(std::vector<TensorSpec> logical, DType dtype) : dtype_(dtype) {
    layout_.tensors = std::move(logical);
    layout_.ranks.resize(1);
  }

  // The next `count` logical tensors, one behind the other in dimension 0, then zero rows up to a multiple of
  // `row_multiple`. Returns the local tensor's index.
  int Add(const std::string& name, int count, std::int64_t row_multiple = 1) {
    RankLayout& rank = layout_.ranks[0];
    const auto local = static_cast<std::int32_t>(rank.tensors.size());
    Dims shape = layout_.tensors[static_cast<std::size_t>(next_)].shape;
    std::int64_t rows = 0;
    for (int i = 0; i < count; ++i, ++next_) {
      const Box whole = Box::Whole(layout_.tensors[static_cast<std::size_t>(next_)].shape);
      Box local_box = whole;
      local_box.offset[0] = rows;
      rank.rows.push_back({local, local_box, next_, whole});
      rows += whole.extent[0];
    }
    shape[0] = RoundUp(rows, row_multiple);
    if (shape[0] > rows) {
      Box padding = Box::Whole(shape);
      padding.offset[0] = rows;
      padding.extent[0] -= rows;
      rank.rows.push_back({local, padding, kFill, {}});
    }
    rank.tensors.push_back({.name = name, .dtype = dtype_, .shape = shape, .stride = {}});
    return local;
  }
  int Add(const std::string& name) { return Add(name, 1); }

  Layout Take() {
    CHECK(static_cast<std::size_t>(next_) == layout_.tensors.size());
    return std::move(layout_);
  }

 private:
  Layout layout_;
  DType dtype_;
  std::int32_t next_ = 0;  // logical
};

EngineLayerTensors AddLayer(const ModelConfig& config, std::int64_t layer, EngineLayoutBuilder& builder) {
  EngineLayerTensors tensors;
  tensors.input_norm = builder.Add(LayerName(layer, "input_layernorm.weight"));
  tensors.qkv = builder.Add(LayerName(layer, "self_attn.qkv_proj.weight"), 3);
  if (config.qk_norm) {
    tensors.q_norm = builder.Add(LayerName(layer, "self_attn.q_norm.weight"));
    tensors.k_norm = builder.Add(LayerName(layer, "self_attn.k_norm.weight"));
  }
  tensors.out = builder.Add(LayerName(layer, "self_attn.o_proj.weight"));
  tensors.post_attention_norm = builder.Add(LayerName(layer, "post_attention_layernorm.weight"));
  tensors.gate_up = builder.Add(LayerName(layer, "mlp.gate_up_proj.weight"), 2);
  tensors.down = builder.Add(LayerName(layer, "mlp.down_proj.weight"));
  return tensors;
}

}  // namespace

std::vector<TensorSpec> LogicalTensors(const ModelConfig& config, DType dtype) {
  const std::int64_t hidden = config.hidden;
  std::vector<TensorSpec> tensors;
  const auto add = [&](std::string name, const Dims& shape) { tensors.push_back({std::move(name), dtype, shape}); };
  add("model.embed_tokens.weight", {config.vocabulary, hidden});
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    add(LayerName(layer, "input_layernorm.weight"), {hidden});
    add(LayerName(layer, "self_attn.q_proj.weight"), {QueryRows(config), hidden});
    add(LayerName(layer, "self_attn.k_proj.weight"), {KvRows(config), hidden});
    add(LayerName(layer, "self_attn.v_proj.weight"), {KvRows(config), hidden});
    if (config.qk_norm) {
      add(LayerName(layer, "self_attn.q_norm.weight"), {config.head_size});
      add(LayerName(layer, "self_attn.k_norm.weight"), {config.head_size});
    }
    add(LayerName(layer, "self_attn.o_proj.weight"), {hidden, QueryRows(config)});
    add(LayerName(layer, "post_attention_layernorm.weight"), {hidden});
    add(LayerName(layer, "mlp.gate_proj.weight"), {config.ffn, hidden});
    add(LayerName(layer, "mlp.up_proj.weight"), {config.ffn, hidden});
    add(LayerName(layer, "mlp.down_proj.weight"), {hidden, config.ffn});
  }
  add("model.norm.weight", {hidden});
  if (!config.tied_head) add("lm_head.weight", {config.vocabulary, hidden});
  return tensors;
}

Result<EngineLayout> MakeEngineLayout(const ModelConfig& config, DType dtype) {
  RETURN_IF_ERROR(CheckSizes(config));
  EngineLayout engine;
  EngineLayoutBuilder builder(LogicalTensors(config, dtype), dtype);
  EngineTensors& tensors = engine.tensors;
  tensors.padded_vocabulary = RoundUp(config.vocabulary, kVocabularyMultiple);
  tensors.embedding = builder.Add("model.embed_tokens.weight", 1, kVocabularyMultiple);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    tensors.layers.push_back(AddLayer(config, layer, builder));
  }
  tensors.final_norm = builder.Add("model.norm.weight");
  tensors.head = config.tied_head ? tensors.embedding : builder.Add("lm_head.weight", 1, kVocabularyMultiple);
  engine.layout = builder.Take();
  if (const Status status = CheckLayout(engine.layout); !status.ok()) return BadConfig(status.message());
  return engine;
}

}  // namespace bascule
