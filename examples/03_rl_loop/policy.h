// The policy that the reinforcement-learning loop trains: a Qwen3- or Llama-style decoder in torch autograd.
//
// Names, shapes and arithmetic are those of Hugging Face checkpoints, so that the engine computes the same function
// from the same tensors: RMSNorm, rotary embedding in the half-split convention, grouped-query attention with an
// optional norm on queries and keys, SwiGLU, tied or untied head.
//
// Thread-safety: thread-compatible.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <map>
#include <string>

namespace bascule::rl_loop {

// Fields are named as in a Hugging Face config.json.
struct PolicyConfig {
  std::int64_t vocab_size = 32;
  std::int64_t hidden_size = 64;
  std::int64_t intermediate_size = 192;
  std::int64_t num_hidden_layers = 2;
  std::int64_t num_attention_heads = 4;
  std::int64_t num_key_value_heads = 2;
  std::int64_t head_dim = 16;
  std::int64_t max_position_embeddings = 32;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;
  bool qk_norm = true;  // Qwen3 has it, Llama has not.
};

// Canonical name to tensor, in the sorted order in which a manifest lists them.
using TensorMap = std::map<std::string, torch::Tensor>;

// Random fp32 tensors of every name that `config` needs. Equal seeds give equal tensors.
TensorMap InitialTensors(const PolicyConfig& config, std::uint64_t seed);

// Logits [batch, length, vocab] after each token of `token_ids`, int64 [batch, length]. Causal, no padding.
// Gradients flow to `tensors` where they require them.
torch::Tensor PolicyLogits(const PolicyConfig& config, const TensorMap& tensors, const torch::Tensor& token_ids);

}  // namespace bascule::rl_loop
