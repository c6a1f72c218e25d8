// The architectures whose checkpoints we know. Each is a table in a file of model/architectures/, and
// model/architectures/registry.cc lists them; docs/adding_a_model.md adds one.
//
// Thread-safety: thread-safe (constants and pure functions).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/config_reader.h"
#include "model/model_config.h"
#include "model/module.h"

namespace bascule {

// Where the size of a head stands in config.json.
enum class HeadSizeRule : std::uint8_t {
  kHiddenByHeads,  // head_dim, else hidden_size / num_attention_heads
  kStated,         // head_dim; a file that leaves it out is unclear
  kLatent,         // qk_nope_head_dim + qk_rope_head_dim, and v_head_dim
};

struct Architecture {
  std::string_view name;         // in "architectures" of config.json
  std::string_view text_config;  // the key under which the decoder's sizes stand; empty: at the top
  HeadSizeRule head_size = HeadSizeRule::kHiddenByHeads;
  bool tied_by_default = false;  // where tie_word_embeddings is left out
  bool qk_norm = false;
  bool always_qkv_bias = false;  // without attention_bias
  // Reads the keys that only this architecture has; null where there are none.
  Status (*read)(const ConfigReader& reader, ModelConfig& config) = nullptr;
  // The modules of a layer, in the order of computation.
  std::vector<Module> (*layer)(const ModelConfig& config, std::int64_t layer) = nullptr;
};

std::span<const Architecture* const> Architectures();

// For Architecture::read: notes the layers for which `is_dense` says that they have no experts.
//
// InvalidArgument "bad_config"  more layers than are countable
Status SetDenseLayers(ModelConfig& config, const std::function<bool(std::int64_t layer)>& is_dense);

// Unimplemented "unknown_architecture"  prints what is supported, the nearest first
Result<const Architecture*> FindArchitecture(std::string_view name);

}  // namespace bascule
