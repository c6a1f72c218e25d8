#include "policy.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace bascule::rl_loop {
namespace {

constexpr double kEmbeddingStd = 0.02;

// Cosines and sines [length, head_dim / 2] of the rotary embedding.
struct RotaryTable {
  torch::Tensor cos;
  torch::Tensor sin;
};

RotaryTable MakeRotaryTable(const PolicyConfig& config, std::int64_t length) {
  const torch::Tensor even = torch::arange(0, config.head_dim, 2, torch::kFloat32);
  const torch::Tensor inverse_frequency = torch::pow(config.rope_theta, -even / static_cast<double>(config.head_dim));
  const torch::Tensor angle = torch::outer(torch::arange(length, torch::kFloat32), inverse_frequency);
  return {angle.cos(), angle.sin()};
}

// `x` is [batch, heads, length, head_dim]; the first half of head_dim pairs with the second.
torch::Tensor Rotate(const torch::Tensor& x, const RotaryTable& table) {
  const std::vector<torch::Tensor> half = x.chunk(2, -1);
  return torch::cat({half[0] * table.cos - half[1] * table.sin, half[1] * table.cos + half[0] * table.sin}, -1);
}

torch::Tensor RmsNorm(const torch::Tensor& x, const torch::Tensor& weight, double eps) {
  return x * torch::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps) * weight;
}

// The tensors of one layer under their names within it.
class LayerTensors {
 public:
  LayerTensors(const TensorMap& tensors, std::int64_t layer)
      : tensors_(tensors), prefix_("model.layers." + std::to_string(layer) + ".") {}

  const torch::Tensor& operator[](const std::string& name) const { return tensors_.at(prefix_ + name + ".weight"); }

 private:
  const TensorMap& tensors_;
  std::string prefix_;
};

torch::Tensor Project(const torch::Tensor& x, const torch::Tensor& weight) { return torch::matmul(x, weight.t()); }

torch::Tensor Attention(const PolicyConfig& config, const LayerTensors& layer, const torch::Tensor& x,
                        const RotaryTable& table) {
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const std::int64_t queries_per_key = config.num_attention_heads / config.num_key_value_heads;
  const auto heads = [&](const std::string& name, std::int64_t head_count) {
    return Project(x, layer[name]).view({batch, length, head_count, config.head_dim});
  };
  torch::Tensor q = heads("self_attn.q_proj", config.num_attention_heads);
  torch::Tensor k = heads("self_attn.k_proj", config.num_key_value_heads);
  const torch::Tensor v = heads("self_attn.v_proj", config.num_key_value_heads).transpose(1, 2);
  if (config.qk_norm) {
    q = RmsNorm(q, layer["self_attn.q_norm"], config.rms_norm_eps);
    k = RmsNorm(k, layer["self_attn.k_norm"], config.rms_norm_eps);
  }
  q = Rotate(q.transpose(1, 2), table);
  k = Rotate(k.transpose(1, 2), table);

  // The queries that share a key/value head are stacked along the length, so that no key or value is copied.
  const torch::Tensor stacked_q =
      q.reshape({batch, config.num_key_value_heads, queries_per_key * length, config.head_dim});
  torch::Tensor scores =
      torch::matmul(stacked_q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(config.head_dim));
  const torch::Tensor future = torch::full({length, length}, -std::numeric_limits<float>::infinity()).triu(1);
  scores = scores + future.repeat({queries_per_key, 1});
  const torch::Tensor mixed = torch::matmul(scores.softmax(-1), v)
                                  .view({batch, config.num_attention_heads, length, config.head_dim})
                                  .transpose(1, 2)
                                  .reshape({batch, length, config.num_attention_heads * config.head_dim});
  return Project(mixed, layer["self_attn.o_proj"]);
}

torch::Tensor Mlp(const LayerTensors& layer, const torch::Tensor& x) {
  return Project(torch::silu(Project(x, layer["mlp.gate_proj"])) * Project(x, layer["mlp.up_proj"]),
                 layer["mlp.down_proj"]);
}

// Makes tensors from one stream of random numbers, so their order is part of what a seed means.
class TensorInitializer {
 public:
  explicit TensorInitializer(std::uint64_t seed) : generator_(at::detail::createCPUGenerator(seed)) {}

  void Matrix(const std::string& name, std::int64_t rows, std::int64_t columns, double std) {
    tensors_.emplace(name + ".weight", torch::randn({rows, columns}, generator_, torch::kFloat32) * std);
  }
  void Norm(const std::string& name, std::int64_t size) {
    tensors_.emplace(name + ".weight", torch::ones({size}, torch::kFloat32));
  }
  TensorMap Take() && { return std::move(tensors_); }

 private:
  at::Generator generator_;
  TensorMap tensors_;
};

}  // namespace

TensorMap InitialTensors(const PolicyConfig& config, std::uint64_t seed) {
  const std::int64_t q_rows = config.num_attention_heads * config.head_dim;
  const std::int64_t kv_rows = config.num_key_value_heads * config.head_dim;
  // Matrices that write to the residual stream start smaller the more of them there are.
  const double std = 1.0 / std::sqrt(static_cast<double>(config.hidden_size));
  const double residual_std = std / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));

  TensorInitializer init(seed);
  init.Matrix("model.embed_tokens", config.vocab_size, config.hidden_size, kEmbeddingStd);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    init.Norm(layer + "input_layernorm", config.hidden_size);
    init.Matrix(layer + "self_attn.q_proj", q_rows, config.hidden_size, std);
    init.Matrix(layer + "self_attn.k_proj", kv_rows, config.hidden_size, std);
    init.Matrix(layer + "self_attn.v_proj", kv_rows, config.hidden_size, std);
    init.Matrix(layer + "self_attn.o_proj", config.hidden_size, q_rows, residual_std);
    if (config.qk_norm) {
      init.Norm(layer + "self_attn.q_norm", config.head_dim);
      init.Norm(layer + "self_attn.k_norm", config.head_dim);
    }
    init.Norm(layer + "post_attention_layernorm", config.hidden_size);
    init.Matrix(layer + "mlp.gate_proj", config.intermediate_size, config.hidden_size, std);
    init.Matrix(layer + "mlp.up_proj", config.intermediate_size, config.hidden_size, std);
    init.Matrix(layer + "mlp.down_proj", config.hidden_size, config.intermediate_size, residual_std);
  }
  init.Norm("model.norm", config.hidden_size);
  if (!config.tie_word_embeddings) init.Matrix("lm_head", config.vocab_size, config.hidden_size, kEmbeddingStd);
  return std::move(init).Take();
}

torch::Tensor PolicyLogits(const PolicyConfig& config, const TensorMap& tensors, const torch::Tensor& token_ids) {
  const RotaryTable table = MakeRotaryTable(config, token_ids.size(1));
  const torch::Tensor& embedding = tensors.at("model.embed_tokens.weight");
  torch::Tensor x = torch::embedding(embedding, token_ids);
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const LayerTensors layer(tensors, i);
    x = x + Attention(config, layer, RmsNorm(x, layer["input_layernorm"], config.rms_norm_eps), table);
    x = x + Mlp(layer, RmsNorm(x, layer["post_attention_layernorm"], config.rms_norm_eps));
  }
  x = RmsNorm(x, tensors.at("model.norm.weight"), config.rms_norm_eps);
  return Project(x, config.tie_word_embeddings ? embedding : tensors.at("lm_head.weight"));
}

}  // namespace bascule::rl_loop
