// The modules that most decoders share, under their usual Hugging Face names.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <string>
#include <vector>

#include "model/model_config.h"
#include "model/module.h"

namespace bascule {

Extent Hidden(const ModelConfig& config);
Extent QueryRows(const ModelConfig& config);  // query heads times head size
Extent KeyRows(const ModelConfig& config);    // KV heads times head size
Extent ValueRows(const ModelConfig& config);  // KV heads times value-head size

// A norm over the hidden size: NAME.weight.
Parameter HiddenNorm(const ModelConfig& config, const std::string& name, LayerIndex index);
// A norm over one head, or any other vector: NAME.weight.
Parameter Norm(const std::string& name, const Extent& size, LayerIndex index);

// self_attn.qkv_proj of q_proj, k_proj and v_proj, and self_attn.o_proj.
Linear QkvLinear(const ModelConfig& config);
Linear OutLinear(const ModelConfig& config);
// MODULE.gate_up_proj of gate_proj and up_proj, and MODULE.down_proj.
Linear GateUpLinear(const ModelConfig& config, const std::string& module, const Extent& ffn);
Linear DownLinear(const ModelConfig& config, const std::string& module, const Extent& ffn);

// mlp.gate and mlp.experts, in Qwen's and DeepSeek's spelling.
Parameter Router(const ModelConfig& config);
Experts ExpertNetworks(const ModelConfig& config);

// Appended to `layer`: attention with norms per head where the model has them; a plain feed-forward network.
void AppendAttention(const ModelConfig& config, std::vector<Module>& layer);
void AppendFeedForward(const ModelConfig& config, std::vector<Module>& layer);

// The layer of Llama and its like: norm, attention, norm, gated feed-forward network.
std::vector<Module> LlamaLayer(const ModelConfig& config, std::int64_t layer);

}  // namespace bascule
