#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/model_config.h"

namespace bascule {
namespace {

constexpr std::array<std::string_view, 4> kDecodable = {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM",
                                                        "Qwen3ForCausalLM"};

Status Unsupported(std::string_view reason, std::string message) {
  return Status::Unimplemented(reason, std::move(message));
}

}  // namespace

Status CheckDecodable(const ModelConfig& config) {
  if (std::ranges::find(kDecodable, config.architecture) == kDecodable.end()) {
    return Unsupported("unsupported_architecture", fmt::format("architectures: got {}, the decoder runs {}",
                                                               config.architecture, fmt::join(kDecodable, ", ")));
  }
  if (config.rope_scaling != "default" && config.rope_scaling != "llama3") {
    return Unsupported("unsupported_rope_scaling",
                       fmt::format("rope_scaling or rope_parameters: got rope_type {}, supported: default, llama3",
                                   config.rope_scaling));
  }
  if (config.activation != "silu") {
    return Unsupported("unsupported_activation", fmt::format("hidden_act: got {}, supported: silu", config.activation));
  }
  if (!config.attention_window.empty()) {
    return Unsupported("unsupported_sliding_window", fmt::format("{} is not supported", config.attention_window));
  }
  if (config.rotary_fraction != 1.0) {
    return Unsupported("unsupported_partial_rotary",
                       fmt::format("partial_rotary_factor: {} is not supported", config.rotary_fraction));
  }
  if (config.ValueHeadSize() != config.head_size) {
    return Unsupported("unsupported_head_size",
                       fmt::format("v_head_dim: {} is not head_dim {}", config.ValueHeadSize(), config.head_size));
  }
  if (!config.quantization.method.empty()) {
    return Unsupported(
        "unsupported_quantization",
        fmt::format("quantization_config: {}; only plain weights are supported", config.quantization.ToString()));
  }
  return OkStatus();
}

}  // namespace bascule
