// Qwen3 mixtures of experts: Qwen3's attention; every decoder_sparse_step-th layer has experts unless mlp_only_layers
// names it.
#include <algorithm>

#include "model/architectures/decoder_modules.h"
#include "model/architectures/registry_internal.h"

namespace bascule {
namespace {

Status Read(const ConfigReader& reader, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.experts.count, reader.Size("num_experts"));
  ASSIGN_OR_RETURN(config.experts.per_token, reader.Size("num_experts_per_tok"));
  ASSIGN_OR_RETURN(config.experts.ffn, reader.Size("moe_intermediate_size"));
  ASSIGN_OR_RETURN(const std::int64_t step, reader.Size("decoder_sparse_step", 1));
  ASSIGN_OR_RETURN(const std::vector<std::int64_t> dense, reader.Counts("mlp_only_layers"));
  return SetDenseLayers(config, [&](std::int64_t layer) {
    return (layer + 1) % step != 0 || std::ranges::find(dense, layer) != dense.end();
  });
}

std::vector<Module> Layer(const ModelConfig& config, std::int64_t index) {
  std::vector<Module> layer = {HiddenNorm(config, "input_layernorm", &EngineLayerTensors::input_norm)};
  AppendAttention(config, layer);
  layer.push_back(HiddenNorm(config, "post_attention_layernorm", &EngineLayerTensors::post_attention_norm));
  if (config.HasExperts(index)) {
    layer.push_back(Router(config));
    layer.push_back(ExpertNetworks(config));
  } else {
    AppendFeedForward(config, layer);
  }
  return layer;
}

}  // namespace

const Architecture kQwen3Moe = {.name = "Qwen3MoeForCausalLM", .qk_norm = true, .read = Read, .layer = Layer};

}  // namespace bascule
