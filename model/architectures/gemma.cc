// Gemma 2 and 3: a norm before and behind both halves of a layer, a tied head, a head size of its own. Gemma 3 has
// norms over each query and key head too; with images its decoder lies under text_config.
#include "model/architectures/decoder_modules.h"
#include "model/architectures/registry_internal.h"

namespace bascule {
namespace {

std::vector<Module> Layer(const ModelConfig& config, std::int64_t /*layer*/) {
  std::vector<Module> layer = {HiddenNorm(config, "input_layernorm", &EngineLayerTensors::input_norm)};
  AppendAttention(config, layer);
  layer.push_back(HiddenNorm(config, "post_attention_layernorm", &EngineLayerTensors::post_attention_norm));
  layer.push_back(HiddenNorm(config, "pre_feedforward_layernorm", &EngineLayerTensors::pre_ffn_norm));
  AppendFeedForward(config, layer);
  layer.push_back(HiddenNorm(config, "post_feedforward_layernorm", &EngineLayerTensors::post_ffn_norm));
  return layer;
}

}  // namespace

const Architecture kGemma2 = {
    .name = "Gemma2ForCausalLM", .head_size = HeadSizeRule::kStated, .tied_by_default = true, .layer = Layer};

const Architecture kGemma3 = {.name = "Gemma3ForCausalLM",
                              .head_size = HeadSizeRule::kStated,
                              .tied_by_default = true,
                              .qk_norm = true,
                              .layer = Layer};

const Architecture kGemma3WithImages = {.name = "Gemma3ForConditionalGeneration",
                                        .text_config = "text_config",
                                        .head_size = HeadSizeRule::kStated,
                                        .tied_by_default = true,
                                        .qk_norm = true,
                                        .layer = Layer};

}  // namespace bascule
