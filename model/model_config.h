// A decoder's sizes, from a Hugging Face config.json.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace bascule {

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
  bool qk_norm = false;  // Qwen3
  // One line for manifests: two models that differ in it are not the same model.
  std::string Description() const;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// InvalidArgument "bad_config"                names the key and the value
// Unimplemented   "unknown_architecture"      prints what is supported
// Unimplemented   "unsupported_rope_scaling" | "unsupported_activation" | "unsupported_attention_bias" ...: a setting that
//                 would change the result is refused, never skipped
Result<ModelConfig> ParseModelConfig(std::string_view config_json);

}  // namespace bascule
