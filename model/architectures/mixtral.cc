// Mixtral: Llama's attention, and experts that are named w1 (gate), w3 (up) and w2 (down). Newer files name the module
// mlp and stack the experts.
#include "model/architectures/decoder_modules.h"
#include "model/architectures/registry_internal.h"

namespace bascule {
namespace {

Status Read(const ConfigReader& reader, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.experts.count, reader.Size("num_local_experts"));
  ASSIGN_OR_RETURN(config.experts.per_token, reader.Size("num_experts_per_tok"));
  config.experts.ffn = config.ffn;
  return OkStatus();
}

std::vector<Module> Layer(const ModelConfig& config, std::int64_t /*layer*/) {
  std::vector<Module> layer = {HiddenNorm(config, "input_layernorm", &EngineLayerTensors::input_norm)};
  AppendAttention(config, layer);
  layer.push_back(HiddenNorm(config, "post_attention_layernorm", &EngineLayerTensors::post_attention_norm));
  Parameter router = Router(config);
  router.engine_name = router.name;
  router.name = "block_sparse_moe.gate.weight";
  layer.push_back(router);
  layer.push_back(OtherName{.name = router.name, .other = router.engine_name});
  Experts experts = ExpertNetworks(config);
  experts.name = "block_sparse_moe.experts";
  experts.gate = "w1";
  experts.up = "w3";
  experts.down = "w2";
  experts.stacked = {"mlp.experts", "block_sparse_moe.experts"};
  layer.push_back(experts);
  return layer;
}

}  // namespace

const Architecture kMixtral = {.name = "MixtralForCausalLM", .read = Read, .layer = Layer};

}  // namespace bascule
