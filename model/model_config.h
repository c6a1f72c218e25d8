// A decoder's sizes, from a Hugging Face config.json.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/rope.h"
#include "model/quantization.h"

namespace bascule {

// A mixture of experts. count == 0: there is none.
struct ExpertSizes {
  std::int64_t count = 0;
  std::int64_t per_token = 0;
  std::int64_t ffn = 0;
  std::int64_t shared_ffn = 0;             // of the experts that every token takes, together; 0: there are none
  bool router_bias = false;                // DeepSeek-V3's e_score_correction_bias
  std::vector<std::int64_t> dense_layers;  // layers with one plain feed-forward network instead, rising
  friend bool operator==(const ExpertSizes&, const ExpertSizes&) = default;
};

// Latent attention (DeepSeek): queries, and keys with values, go through vectors of low rank. kv_rank == 0: there is
// none.
struct LatentSizes {
  std::int64_t query_rank = 0;  // 0: queries are projected directly
  std::int64_t kv_rank = 0;
  std::int64_t nope_head_size = 0;  // of a query and key head: the part that is not rotated
  std::int64_t rope_head_size = 0;  // the part that is; in keys one for all heads
  friend bool operator==(const LatentSizes&, const LatentSizes&) = default;
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM", "Qwen3ForCausalLM"
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  std::int64_t ffn = 0;
  std::int64_t vocabulary = 0;
  std::int64_t max_positions = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tied_head = false;
  bool qk_norm = false;  // Qwen3, Gemma 3
  // What follows has the values of a plain decoder where nothing else is said.
  std::int64_t value_head_size = 0;  // 0: as head_size
  bool qkv_bias = false, out_bias = false, ffn_bias = false;
  ExpertSizes experts = {};
  LatentSizes latent = {};
  // Settings that change the result but no tensor: CheckDecodable judges them.
  std::string activation = "silu";
  std::string rope_scaling = "default";  // the rope_type
  RopeStretch rope_stretch = {};         // of rope_type "llama3"
  double rotary_fraction = 1.0;
  std::string attention_window;  // which key asks for windowed or other attention, and how; empty: none does, or
                                 // for a window that holds every position
  Quantization quantization = {};

  std::int64_t ValueHeadSize() const { return value_head_size == 0 ? head_size : value_head_size; }
  bool HasExperts(std::int64_t layer) const;
  // One line for manifests: two models that differ in it are not the same model.
  std::string Description() const;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Reads what the mapping to engine tensors needs, for every architecture of architecture.h.
//
// InvalidArgument "bad_config"            names the key and the value
// Unimplemented   "unknown_architecture"  prints what is supported, the nearest first
// Unimplemented   "unsupported_quantization"  as ReadQuantization
Result<ModelConfig> ParseModelConfig(std::string_view config_json);

// Whether our decoder runs this model: a setting that would change the result is refused, never skipped.
//
// Unimplemented "unsupported_architecture" | "unsupported_rope_scaling" | "unsupported_activation" |
//               "unsupported_sliding_window" | "unsupported_partial_rotary" | "unsupported_head_size" |
//               "unsupported_quantization"
Status CheckDecodable(const ModelConfig& config);

}  // namespace bascule
