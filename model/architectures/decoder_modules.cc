#include "model/architectures/decoder_modules.h"

namespace bascule {

Extent Hidden(const ModelConfig& config) { return Named("hidden", config.hidden); }

Extent QueryRows(const ModelConfig& config) {
  return Named("query_heads", config.query_heads) * Named("head_size", config.head_size);
}

Extent KeyRows(const ModelConfig& config) {
  return Named("kv_heads", config.kv_heads) * Named("head_size", config.head_size);
}

Extent ValueRows(const ModelConfig& config) {
  return Named("kv_heads", config.kv_heads) * Named("value_head_size", config.ValueHeadSize());
}

Parameter HiddenNorm(const ModelConfig& config, const std::string& name, LayerIndex index) {
  return Norm(name, Hidden(config), index);
}

Parameter Norm(const std::string& name, const Extent& size, LayerIndex index) {
  return {.name = name + ".weight", .shape = {size}, .layer_index = index};
}

Linear QkvLinear(const ModelConfig& config) {
  return {.engine_name = "self_attn.qkv_proj",
          .parts = {{"self_attn.q_proj", QueryRows(config), Cut::kRows, config.head_size},
                    {"self_attn.k_proj", KeyRows(config), Cut::kKvHeads, config.head_size},
                    {"self_attn.v_proj", ValueRows(config), Cut::kKvHeads, config.ValueHeadSize()}},
          .columns = Hidden(config),
          .bias = config.qkv_bias,
          .weight_index = &EngineLayerTensors::qkv,
          .bias_index = &EngineLayerTensors::qkv_bias};
}

Linear OutLinear(const ModelConfig& config) {
  const std::int64_t size = config.ValueHeadSize();
  return {.engine_name = "self_attn.o_proj",
          .parts = {{"self_attn.o_proj", Hidden(config), Cut::kColumns, size}},
          .columns = Named("query_heads", config.query_heads) * Named("value_head_size", size),
          .bias = config.out_bias,
          .weight_index = &EngineLayerTensors::out,
          .bias_index = &EngineLayerTensors::out_bias};
}

Linear GateUpLinear(const ModelConfig& config, const std::string& module, const Extent& ffn) {
  return {.engine_name = module + ".gate_up_proj",
          .parts = {{module + ".gate_proj", ffn}, {module + ".up_proj", ffn}},
          .columns = Hidden(config),
          .bias = config.ffn_bias,
          .weight_index = &EngineLayerTensors::gate_up,
          .bias_index = &EngineLayerTensors::gate_up_bias};
}

Linear DownLinear(const ModelConfig& config, const std::string& module, const Extent& ffn) {
  return {.engine_name = module + ".down_proj",
          .parts = {{module + ".down_proj", Hidden(config), Cut::kColumns}},
          .columns = ffn,
          .bias = config.ffn_bias,
          .weight_index = &EngineLayerTensors::down,
          .bias_index = &EngineLayerTensors::down_bias};
}

Parameter Router(const ModelConfig& config) {
  return {.name = "mlp.gate.weight",
          .shape = {Named("experts", config.experts.count), Hidden(config)},
          .layer_index = &EngineLayerTensors::router};
}

Experts ExpertNetworks(const ModelConfig& config) {
  return {.engine_name = "mlp.experts",
          .name = "mlp.experts",
          .gate = "gate_proj",
          .up = "up_proj",
          .down = "down_proj",
          .count = Named("experts", config.experts.count),
          .ffn = Named("expert_ffn", config.experts.ffn),
          .hidden = Hidden(config),
          .stacked = {"mlp.experts"},
          .gate_up_index = &EngineLayerTensors::experts_gate_up,
          .down_index = &EngineLayerTensors::experts_down};
}

void AppendAttention(const ModelConfig& config, std::vector<Module>& layer) {
  layer.push_back(QkvLinear(config));
  if (config.qk_norm) {
    const Extent size = Named("head_size", config.head_size);
    layer.push_back(Norm("self_attn.q_norm", size, &EngineLayerTensors::q_norm));
    layer.push_back(Norm("self_attn.k_norm", size, &EngineLayerTensors::k_norm));
  }
  layer.push_back(OutLinear(config));
}

void AppendFeedForward(const ModelConfig& config, std::vector<Module>& layer) {
  const Extent ffn = Named("ffn", config.ffn);
  layer.push_back(GateUpLinear(config, "mlp", ffn));
  layer.push_back(DownLinear(config, "mlp", ffn));
}

std::vector<Module> LlamaLayer(const ModelConfig& config, std::int64_t /*layer*/) {
  std::vector<Module> layer = {HiddenNorm(config, "input_layernorm", &EngineLayerTensors::input_norm)};
  AppendAttention(config, layer);
  layer.push_back(HiddenNorm(config, "post_attention_layernorm", &EngineLayerTensors::post_attention_norm));
  AppendFeedForward(config, layer);
  return layer;
}

}  // namespace bascule
