#include "tests/unit/decode/tiny_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <random>

namespace bascule {
namespace {

std::string LayerName(std::int64_t layer, const char* name, const char* part = "weight") {
  return "model.layers." + std::to_string(layer) + "." + name + "." + part;
}

// Rows [first, first + rows) of a matrix.
std::vector<float> Rows(const std::vector<float>& matrix, std::int64_t columns, std::int64_t first, std::int64_t rows) {
  const auto begin = matrix.begin() + first * columns;
  return {begin, begin + rows * columns};
}

// Columns [first, first + count) of a matrix.
std::vector<float> Columns(const std::vector<float>& matrix, std::int64_t columns, std::int64_t first,
                           std::int64_t count) {
  std::vector<float> cut;
  for (std::size_t row = 0; row < matrix.size(); row += static_cast<std::size_t>(columns)) {
    const auto begin = matrix.begin() + static_cast<std::int64_t>(row) + first;
    cut.insert(cut.end(), begin, begin + count);
  }
  return cut;
}

// Collects the local tensors of one rank.
class RankFuser {
 public:
  RankFuser(const ModelConfig& config, const LogicalWeights& weights, DType dtype, int rank, int ranks)
      : config_(config), weights_(weights), dtype_(dtype), rank_(rank), ranks_(ranks) {}

  void AddAll() {
    const std::int64_t padded = (config_.vocabulary + 63) / 64 * 64;
    tensors.padded_vocabulary = padded;
    tensors.embedding = AddVocabulary("model.embed_tokens.weight", padded);
    for (std::int64_t l = 0; l < config_.layers; ++l) AddLayer(l);
    tensors.final_norm = Add({weights_.at("model.norm.weight")});
    tensors.head = config_.tied_head ? tensors.embedding : AddVocabulary("lm_head.weight", padded);
  }

  EngineTensors tensors;
  std::vector<std::vector<std::byte>> bytes;
  RankLayout layout;

 private:
  int Add(const std::vector<std::vector<float>>& parts) {
    std::vector<std::byte>& local = bytes.emplace_back();
    for (const std::vector<float>& part : parts) {
      for (const float value : part) Append(value, local);
    }
    const std::int64_t elements = static_cast<std::int64_t>(local.size()) / ItemBytes(dtype_);
    layout.tensors.push_back(
        {.name = "t" + std::to_string(bytes.size()), .dtype = dtype_, .shape = {elements}, .stride = {}});
    return static_cast<int>(bytes.size()) - 1;
  }
  void Append(float value, std::vector<std::byte>& local) const {
    const auto all = std::bit_cast<std::array<std::byte, 4>>(value);
    local.insert(local.end(), all.begin() + (dtype_ == DType::kBf16 ? 2 : 0), all.end());
  }

  int AddVocabulary(const std::string& name, std::int64_t padded) {
    std::vector<float> whole = weights_.at(name);
    whole.resize(static_cast<std::size_t>(padded * config_.hidden));
    return Add({Rows(whole, config_.hidden, rank_ * (padded / ranks_), padded / ranks_)});
  }
  // This rank's share of `rows` rows; a bias has one column.
  std::vector<float> RowShare(const std::string& name, std::int64_t rows) const {
    const std::vector<float>& whole = weights_.at(name);
    return Rows(whole, static_cast<std::int64_t>(whole.size()) / rows, rank_ * (rows / ranks_), rows / ranks_);
  }
  // Whole KV heads: this rank's, or the one that it shares with others.
  std::vector<float> KvShare(const std::string& name) const {
    const std::vector<float>& whole = weights_.at(name);
    const std::int64_t head_elements = static_cast<std::int64_t>(whole.size()) / config_.kv_heads;
    const std::int64_t heads = std::max<std::int64_t>(config_.kv_heads / ranks_, 1);
    return Rows(whole, head_elements, rank_ * config_.kv_heads / ranks_, heads);
  }
  std::vector<float> ColumnShare(const std::string& name, std::int64_t columns) const {
    return Columns(weights_.at(name), columns, rank_ * (columns / ranks_), columns / ranks_);
  }

  void AddLayer(std::int64_t l) {
    const std::int64_t query = config_.query_heads * config_.head_size;
    const auto whole = [&](const char* name) { return Add({weights_.at(LayerName(l, name))}); };
    EngineLayerTensors& layer = tensors.layers.emplace_back();
    layer.input_norm = whole("input_layernorm");
    layer.qkv = Add({RowShare(LayerName(l, "self_attn.q_proj"), query), KvShare(LayerName(l, "self_attn.k_proj")),
                     KvShare(LayerName(l, "self_attn.v_proj"))});
    if (config_.qk_norm) layer.q_norm = whole("self_attn.q_norm");
    if (config_.qk_norm) layer.k_norm = whole("self_attn.k_norm");
    layer.out = Add({ColumnShare(LayerName(l, "self_attn.o_proj"), query)});
    layer.post_attention_norm = whole("post_attention_layernorm");
    layer.gate_up =
        Add({RowShare(LayerName(l, "mlp.gate_proj"), config_.ffn), RowShare(LayerName(l, "mlp.up_proj"), config_.ffn)});
    layer.down = Add({ColumnShare(LayerName(l, "mlp.down_proj"), config_.ffn)});
    AddBiases(l, layer);
  }
  void AddBiases(std::int64_t l, EngineLayerTensors& layer) {
    const auto name = [&](const char* module) { return LayerName(l, module, "bias"); };
    if (config_.qkv_bias) {
      layer.qkv_bias = Add({RowShare(name("self_attn.q_proj"), config_.query_heads * config_.head_size),
                            KvShare(name("self_attn.k_proj")), KvShare(name("self_attn.v_proj"))});
    }
    if (config_.out_bias) layer.out_bias = Add({weights_.at(name("self_attn.o_proj"))});
    if (!config_.ffn_bias) return;
    layer.gate_up_bias =
        Add({RowShare(name("mlp.gate_proj"), config_.ffn), RowShare(name("mlp.up_proj"), config_.ffn)});
    layer.down_bias = Add({weights_.at(name("mlp.down_proj"))});
  }

  const ModelConfig& config_;
  const LogicalWeights& weights_;
  const DType dtype_;
  const int rank_, ranks_;
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

ModelConfig OneKvHead() {
  ModelConfig config = TinyLlama();
  config.hidden = 48;
  config.query_heads = 8;
  config.kv_heads = 1;
  config.head_size = 10;
  config.ffn = 88;
  return config;
}

ModelConfig ThreeKvHeads() {
  ModelConfig config = TinyQwen3();
  config.hidden = 48;
  config.query_heads = 6;
  config.kv_heads = 3;
  config.head_size = 16;
  config.ffn = 66;
  config.vocabulary = 190;  // 192 rows, shared by three
  return config;
}

ModelConfig TinyQwen2() {
  ModelConfig config = TinyLlama();
  config.architecture = "Qwen2ForCausalLM";
  config.qkv_bias = true;
  return config;
}

ModelConfig AllBiases() {
  ModelConfig config = TinyLlama();
  config.qkv_bias = config.out_bias = config.ffn_bias = true;
  config.rope_scaling = "llama3";
  config.rope_stretch = {.factor = 8, .low_frequency_factor = 1, .high_frequency_factor = 4, .original_positions = 128};
  return config;
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
  const auto bias = [&](std::int64_t layer, const char* name, std::int64_t size) {
    add(LayerName(layer, name, "bias"), 1, size, 0, 0.3);
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
    if (config.qkv_bias) {
      bias(l, "self_attn.q_proj", query);
      bias(l, "self_attn.k_proj", kv);
      bias(l, "self_attn.v_proj", kv);
    }
    if (config.out_bias) bias(l, "self_attn.o_proj", config.hidden);
    if (config.ffn_bias) {
      bias(l, "mlp.gate_proj", config.ffn);
      bias(l, "mlp.up_proj", config.ffn);
      bias(l, "mlp.down_proj", config.hidden);
    }
  }
  norm("model.norm.weight", config.hidden);
  if (!config.tied_head) matrix("lm_head.weight", config.vocabulary, config.hidden);
  return weights;
}

FusedModel Fuse(const ModelConfig& config, const LogicalWeights& weights, DType dtype, int ranks) {
  FusedModel model;
  for (int rank = 0; rank < ranks; ++rank) {
    RankFuser fuser(config, weights, dtype, rank, ranks);
    fuser.AddAll();
    model.tensors = std::move(fuser.tensors);  // the same on every rank
    model.bytes.push_back(std::move(fuser.bytes));
    model.layout.ranks.push_back(std::move(fuser.layout));
  }
  return model;
}

}  // namespace bascule
