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
  return {.name = name + ".weight", .shape = {Hidden(config)}, .layer_index = index};
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

void AppendQkNorms(const ModelConfig& config, std::vector<Module>& layer) {
  const std::vector<Extent> shape = {Named("head_size", config.head_size)};
  layer.push_back(Parameter{"self_attn.q_norm.weight", shape, &EngineLayerTensors::q_norm});
  layer.push_back(Parameter{"self_attn.k_norm.weight", shape, &EngineLayerTensors::k_norm});
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

std::vector<Module> LlamaLayer(const ModelConfig& config, std::int64_t /*layer*/) {
  const Extent ffn = Named("ffn", config.ffn);
  std::vector<Module> modules = {HiddenNorm(config, "input_layernorm", &EngineLayerTensors::input_norm),
                                 QkvLinear(config)};
  if (config.qk_norm) AppendQkNorms(config, modules);
  modules.push_back(OutLinear(config));
  modules.push_back(HiddenNorm(config, "post_attention_layernorm", &EngineLayerTensors::post_attention_norm));
  modules.push_back(GateUpLinear(config, "mlp", ffn));
  modules.push_back(DownLinear(config, "mlp", ffn));
  return modules;
}

}  // namespace bascule
