#include "model/model_config.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

namespace bascule {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kLlama = "LlamaForCausalLM";
constexpr std::string_view kQwen3 = "Qwen3ForCausalLM";
// No size of a model is larger; their products are checked where memory is sized.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;

Status BadConfig(std::string_view key, std::string_view what) {
  return Status::InvalidArgument("bad_config", fmt::format("{}: {}", key, what));
}

// For messages. Values come from a file: a nested one is only named, so that its depth costs no stack.
std::string Shown(const Json& value) { return value.is_structured() ? value.type_name() : value.dump().substr(0, 80); }

// The value of `key`, or null where it is absent or null: Hugging Face writes both for "not set".
const Json* Find(const Json& config, std::string_view key) {
  const auto found = config.find(key);
  return found == config.end() || found->is_null() ? nullptr : &*found;
}

Result<std::int64_t> Size(const Json& config, std::string_view key, std::optional<std::int64_t> fallback = {}) {
  const Json* value = Find(config, key);
  if (value == nullptr) {
    if (fallback) return *fallback;
    return BadConfig(key, "missing");
  }
  // A whole number below 2^63 is signed or unsigned here; larger ones and fractions are floats.
  if (!value->is_number_integer() || *value < 1 || *value > kMaxSize) {
    return BadConfig(key, fmt::format("got {}, want a whole number from 1 to {}", Shown(*value), kMaxSize));
  }
  return value->get<std::int64_t>();
}

Result<double> PositiveNumber(const Json& config, std::string_view key, double fallback) {
  const Json* value = Find(config, key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>()) || value->get<double>() <= 0) {
    return BadConfig(key, fmt::format("got {}, want a positive number", Shown(*value)));
  }
  return value->get<double>();
}

Result<bool> Flag(const Json& config, std::string_view key) {
  const Json* value = Find(config, key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) return BadConfig(key, fmt::format("got {}, want true or false", Shown(*value)));
  return value->get<bool>();
}

Result<std::string> Architecture(const Json& config) {
  const Json* names = Find(config, "architectures");
  if (names == nullptr || !names->is_array() || names->size() != 1 || !names->front().is_string()) {
    return BadConfig("architectures", "want a list of one name");
  }
  const std::string name = names->front().get<std::string>();
  if (name != kLlama && name != kQwen3) {
    return Status::Unimplemented("unknown_architecture",
                                 fmt::format("architectures: got {}, supported: {}, {}", name, kLlama, kQwen3));
  }
  return name;
}

Status RefuseFlag(const Json& config, std::string_view key, std::string_view reason) {
  ASSIGN_OR_RETURN(const bool set, Flag(config, key));
  if (set) return Status::Unimplemented(reason, fmt::format("{}: true is not supported", key));
  return OkStatus();
}

// Positions are rotated by theta alone; any rescaling of them is another model.
Status CheckRopeType(const Json& config, std::string_view key) {
  const Json* rope = Find(config, key);
  if (rope == nullptr) return OkStatus();
  if (!rope->is_object()) return BadConfig(key, fmt::format("got {}, want an object or null", Shown(*rope)));
  const Json* type = Find(*rope, "rope_type");
  if (type == nullptr) type = Find(*rope, "type");
  const bool may_be_plain = key == "rope_parameters";  // always there in new files; rope_scaling only with a scaling
  if (type == nullptr ? may_be_plain : *type == "default") return OkStatus();
  return Status::Unimplemented("unsupported_rope_scaling", fmt::format("{}: rope_type {} is not supported", key,
                                                                       type == nullptr ? "missing" : Shown(*type)));
}

Result<double> RopeTheta(const Json& config) {
  RETURN_IF_ERROR(CheckRopeType(config, "rope_scaling"));
  RETURN_IF_ERROR(CheckRopeType(config, "rope_parameters"));
  ASSIGN_OR_RETURN(const double theta, PositiveNumber(config, "rope_theta", 10000.0));
  const Json* parameters = Find(config, "rope_parameters");
  if (parameters == nullptr) return theta;
  ASSIGN_OR_RETURN(const double nested, PositiveNumber(*parameters, "rope_theta", theta));
  if (Find(config, "rope_theta") != nullptr && nested != theta) {
    return BadConfig("rope_theta", fmt::format("got {}, but {} in rope_parameters", theta, nested));
  }
  return nested;
}

Status RefuseSlidingWindow(const Json& config) {
  RETURN_IF_ERROR(RefuseFlag(config, "use_sliding_window", "unsupported_sliding_window"));
  // Where the switch is there and off, the window's size means nothing.
  if (Find(config, "sliding_window") != nullptr && Find(config, "use_sliding_window") == nullptr) {
    return Status::Unimplemented("unsupported_sliding_window",
                                 fmt::format("sliding_window: {} is not supported", Shown(config["sliding_window"])));
  }
  const Json* layer_types = Find(config, "layer_types");
  if (layer_types == nullptr) return OkStatus();
  if (!layer_types->is_array()) return BadConfig("layer_types", "want a list");
  for (const Json& type : *layer_types) {
    if (type != "full_attention") {
      return Status::Unimplemented("unsupported_layer_type",
                                   fmt::format("layer_types: {} is not supported", Shown(type)));
    }
  }
  return OkStatus();
}

Status RefuseWhatChangesTheResult(const Json& config) {
  const Json* activation = Find(config, "hidden_act");
  if (activation != nullptr && *activation != "silu") {
    return Status::Unimplemented("unsupported_activation",
                                 fmt::format("hidden_act: got {}, supported: silu", Shown(*activation)));
  }
  RETURN_IF_ERROR(RefuseFlag(config, "attention_bias", "unsupported_attention_bias"));
  RETURN_IF_ERROR(RefuseFlag(config, "mlp_bias", "unsupported_mlp_bias"));
  RETURN_IF_ERROR(RefuseSlidingWindow(config));
  ASSIGN_OR_RETURN(const double rotated, PositiveNumber(config, "partial_rotary_factor", 1.0));
  if (rotated != 1.0) {
    return Status::Unimplemented("unsupported_partial_rotary",
                                 fmt::format("partial_rotary_factor: {} is not supported", rotated));
  }
  if (Find(config, "quantization_config") != nullptr) {
    return Status::Unimplemented("unsupported_quantization", "quantization_config: only plain weights are supported");
  }
  return OkStatus();
}

Result<std::int64_t> HeadSize(const Json& config, const ModelConfig& model) {
  std::optional<std::int64_t> fallback;
  // Qwen3's own default is a constant that rarely fits: a file that leaves it out is unclear.
  if (model.architecture == kLlama) {
    if (Find(config, "head_dim") == nullptr && model.hidden % model.query_heads != 0) {
      return BadConfig("hidden_size",
                       fmt::format("{} does not divide by num_attention_heads {}", model.hidden, model.query_heads));
    }
    fallback = model.hidden / model.query_heads;
  }
  ASSIGN_OR_RETURN(const std::int64_t size, Size(config, "head_dim", fallback));
  if (size % 2 != 0) return BadConfig("head_dim", fmt::format("got {}, want an even number", size));
  return size;
}

}  // namespace

std::string ModelConfig::Description() const {
  return fmt::format(
      "{} layers={} hidden={} query_heads={} kv_heads={} head_size={} ffn={} vocabulary={} max_positions={} "
      "rms_norm_eps={} rope_theta={} tied_head={} qk_norm={}",
      architecture, layers, hidden, query_heads, kv_heads, head_size, ffn, vocabulary, max_positions, rms_norm_eps,
      rope_theta, tied_head, qk_norm);
}

Result<ModelConfig> ParseModelConfig(std::string_view config_json) {
  const Json config = Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return BadConfig("config.json", "not a JSON object");
  ModelConfig model;
  ASSIGN_OR_RETURN(model.architecture, Architecture(config));
  RETURN_IF_ERROR(RefuseWhatChangesTheResult(config));
  ASSIGN_OR_RETURN(model.layers, Size(config, "num_hidden_layers"));
  ASSIGN_OR_RETURN(model.hidden, Size(config, "hidden_size"));
  ASSIGN_OR_RETURN(model.query_heads, Size(config, "num_attention_heads"));
  ASSIGN_OR_RETURN(model.kv_heads, Size(config, "num_key_value_heads", model.query_heads));
  if (model.query_heads % model.kv_heads != 0) {
    return BadConfig("num_key_value_heads",
                     fmt::format("num_attention_heads {} does not divide by {}", model.query_heads, model.kv_heads));
  }
  ASSIGN_OR_RETURN(model.head_size, HeadSize(config, model));
  ASSIGN_OR_RETURN(model.ffn, Size(config, "intermediate_size"));
  ASSIGN_OR_RETURN(model.vocabulary, Size(config, "vocab_size"));
  ASSIGN_OR_RETURN(model.max_positions, Size(config, "max_position_embeddings"));
  ASSIGN_OR_RETURN(model.rms_norm_eps, PositiveNumber(config, "rms_norm_eps", 1e-6));
  ASSIGN_OR_RETURN(model.rope_theta, RopeTheta(config));
  ASSIGN_OR_RETURN(model.tied_head, Flag(config, "tie_word_embeddings"));
  model.qk_norm = model.architecture == kQwen3;
  return model;
}

}  // namespace bascule
