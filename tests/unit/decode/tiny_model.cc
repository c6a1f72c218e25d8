#include "tests/unit/decode/tiny_model.h"

#include <array>
#include <bit>
#include <cmath>
#include <random>

namespace bascule {
namespace {

std::string LayerName(std::int64_t layer, const char* name) {
  return "model.layers." + std::to_string(layer) + "." + name + ".weight";
}

// Collects local tensors made of the rows of one or several logical ones.
class Fuser {
 public:
  Fuser(const LogicalWeights& weights, DType dtype) : weights_(weights), dtype_(dtype) {
    model_.layout.ranks.resize(1);
  }

  int Add(const std::string& name, const std::vector<std::string>& parts, std::int64_t padded_elements = 0) {
    std::vector<std::byte>& bytes = model_.bytes.emplace_back();
    std::int64_t elements = 0;
    for (const std::string& part : parts) {
      for (const float value : weights_.at(part)) Append(value, bytes), ++elements;
    }
    for (; elements < padded_elements; ++elements) Append(0, bytes);
    model_.layout.ranks[0].tensors.push_back({.name = name, .dtype = dtype_, .shape = {elements}, .stride = {}});
    return static_cast<int>(model_.bytes.size()) - 1;
  }
  FusedModel& model() { return model_; }

 private:
  void Append(float value, std::vector<std::byte>& bytes) const {
    const auto all = std::bit_cast<std::array<std::byte, 4>>(value);
    bytes.insert(bytes.end(), all.begin() + (dtype_ == DType::kBf16 ? 2 : 0), all.end());
  }
  const LogicalWeights& weights_;
  const DType dtype_;
  FusedModel model_;
};

}  // namespace

ModelConfig TinyLlama() {
  return {.architecture = "LlamaForCausalLM",
          .layers = 2,
          .hidden = 64,
          .query_heads = 4,
          .kv_heads = 2,
          .head_size = 16,
          .ffn = 96,
          .vocabulary = 130,
          .max_positions = 512,
          .rms_norm_eps = 1e-5,
          .rope_theta = 10000,
          .tied_head = false,
          .qk_norm = false};
}

ModelConfig TinyQwen3() {
  return {.architecture = "Qwen3ForCausalLM",
          .layers = 3,
          .hidden = 40,
          .query_heads = 6,
          .kv_heads = 2,
          .head_size = 24,
          .ffn = 56,
          .vocabulary = 77,
          .max_positions = 512,
          .rms_norm_eps = 1e-6,
          .rope_theta = 1e6,
          .tied_head = true,
          .qk_norm = true};
}

LogicalWeights RandomWeights(const ModelConfig& config, std::uint32_t seed) {
  std::mt19937 random(seed);
  LogicalWeights weights;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns, double mean,
                       double deviation) {
    std::normal_distribution<double> normal(mean, deviation);
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(normal(random)));
      weights[name].push_back(std::bit_cast<float>(bits & 0xffff0000u));
    }
  };
  const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    add(name, rows, columns, 0, 1.5 / std::sqrt(static_cast<double>(columns)));
  };
  const auto norm = [&](const std::string& name, std::int64_t size) { add(name, 1, size, 1, 0.2); };
  const std::int64_t query = config.query_heads * config.head_size, kv = config.kv_heads * config.head_size;
  add("model.embed_tokens.weight", config.vocabulary, config.hidden, 0, 0.5);
  for (std::int64_t l = 0; l < config.layers; ++l) {
    norm(LayerName(l, "input_layernorm"), config.hidden);
    matrix(LayerName(l, "self_attn.q_proj"), query, config.hidden);
    matrix(LayerName(l, "self_attn.k_proj"), kv, config.hidden);
    matrix(LayerName(l, "self_attn.v_proj"), kv, config.hidden);
    matrix(LayerName(l, "self_attn.o_proj"), config.hidden, query);
    if (config.qk_norm) norm(LayerName(l, "self_attn.q_norm"), config.head_size);
    if (config.qk_norm) norm(LayerName(l, "self_attn.k_norm"), config.head_size);
    norm(LayerName(l, "post_attention_layernorm"), config.hidden);
    matrix(LayerName(l, "mlp.gate_proj"), config.ffn, config.hidden);
    matrix(LayerName(l, "mlp.up_proj"), config.ffn, config.hidden);
    matrix(LayerName(l, "mlp.down_proj"), config.hidden, config.ffn);
  }
  norm("model.norm.weight", config.hidden);
  if (!config.tied_head) matrix("lm_head.weight", config.vocabulary, config.hidden);
  return weights;
}

FusedModel Fuse(const ModelConfig& config, const LogicalWeights& weights, DType dtype) {
  Fuser fuser(weights, dtype);
  EngineTensors& tensors = fuser.model().tensors;
  tensors.padded_vocabulary = (config.vocabulary + 63) / 64 * 64;
  const std::int64_t padded = tensors.padded_vocabulary * config.hidden;
  tensors.embedding = fuser.Add("embed_tokens", {"model.embed_tokens.weight"}, padded);
  for (std::int64_t l = 0; l < config.layers; ++l) {
    const auto one = [&](const char* name) { return fuser.Add(LayerName(l, name), {LayerName(l, name)}); };
    EngineLayerTensors& layer = tensors.layers.emplace_back();
    layer.input_norm = one("input_layernorm");
    layer.qkv = fuser.Add(
        LayerName(l, "self_attn.qkv_proj"),
        {LayerName(l, "self_attn.q_proj"), LayerName(l, "self_attn.k_proj"), LayerName(l, "self_attn.v_proj")});
    if (config.qk_norm) layer.q_norm = one("self_attn.q_norm");
    if (config.qk_norm) layer.k_norm = one("self_attn.k_norm");
    layer.out = one("self_attn.o_proj");
    layer.post_attention_norm = one("post_attention_layernorm");
    layer.gate_up =
        fuser.Add(LayerName(l, "mlp.gate_up_proj"), {LayerName(l, "mlp.gate_proj"), LayerName(l, "mlp.up_proj")});
    layer.down = one("mlp.down_proj");
  }
  tensors.final_norm = fuser.Add("norm", {"model.norm.weight"});
  tensors.head = config.tied_head ? tensors.embedding : fuser.Add("lm_head", {"lm_head.weight"}, padded);
  return std::move(fuser.model());
}

}  // namespace bascule
