#include "model/model_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/architecture.h"

namespace bascule {
namespace {

Result<const Architecture*> ArchitectureOf(const ConfigReader& reader) {
  const auto names = reader.Texts("architectures");
  if (!names.ok() || names->size() != 1) return BadConfig("architectures", "want a list of one name");
  return FindArchitecture(names->front());
}

Status ReadSizes(const ConfigReader& reader, ModelConfig& model) {
  ASSIGN_OR_RETURN(model.layers, reader.Size("num_hidden_layers"));
  ASSIGN_OR_RETURN(model.hidden, reader.Size("hidden_size"));
  ASSIGN_OR_RETURN(model.query_heads, reader.Size("num_attention_heads"));
  ASSIGN_OR_RETURN(model.kv_heads, reader.Size("num_key_value_heads", model.query_heads));
  if (model.query_heads % model.kv_heads != 0) {
    return BadConfig("num_key_value_heads",
                     fmt::format("num_attention_heads {} does not divide by {}", model.query_heads, model.kv_heads));
  }
  ASSIGN_OR_RETURN(model.ffn, reader.Size("intermediate_size"));
  ASSIGN_OR_RETURN(model.vocabulary, reader.Size("vocab_size"));
  ASSIGN_OR_RETURN(model.max_positions, reader.Size("max_position_embeddings"));
  ASSIGN_OR_RETURN(model.rms_norm_eps, reader.PositiveNumber("rms_norm_eps", 1e-6));
  return OkStatus();
}

Status ReadLatentHeads(const ConfigReader& reader, ModelConfig& model) {
  ASSIGN_OR_RETURN(model.latent.nope_head_size, reader.Size("qk_nope_head_dim"));
  ASSIGN_OR_RETURN(model.latent.rope_head_size, reader.Size("qk_rope_head_dim"));
  model.head_size = model.latent.nope_head_size + model.latent.rope_head_size;
  ASSIGN_OR_RETURN(model.value_head_size, reader.Size("v_head_dim"));
  return OkStatus();
}

Status ReadHeadSizes(const ConfigReader& reader, HeadSizeRule rule, ModelConfig& model) {
  if (rule == HeadSizeRule::kLatent) return ReadLatentHeads(reader, model);
  std::optional<std::int64_t> fallback;
  if (rule == HeadSizeRule::kHiddenByHeads) {
    if (!reader.Has("head_dim") && model.hidden % model.query_heads != 0) {
      return BadConfig("hidden_size",
                       fmt::format("{} does not divide by num_attention_heads {}", model.hidden, model.query_heads));
    }
    fallback = model.hidden / model.query_heads;
  }
  ASSIGN_OR_RETURN(model.head_size, reader.Size("head_dim", fallback));
  if (model.head_size % 2 != 0) {
    return BadConfig("head_dim", fmt::format("got {}, want an even number", model.head_size));
  }
  ASSIGN_OR_RETURN(const std::int64_t value_head_size, reader.Size("v_head_dim", model.head_size));
  model.value_head_size = value_head_size == model.head_size ? 0 : value_head_size;
  return OkStatus();
}

Status ReadBiases(const ConfigReader& reader, bool always_qkv_bias, ModelConfig& model) {
  ASSIGN_OR_RETURN(const bool attention_bias, reader.Flag("attention_bias"));
  model.qkv_bias = attention_bias || always_qkv_bias;
  model.out_bias = attention_bias && !always_qkv_bias;
  ASSIGN_OR_RETURN(model.ffn_bias, reader.Flag("mlp_bias"));
  return OkStatus();
}

// The key "rope_type", in older files "type". rope_parameters is always there in new files; rope_scaling only with a
// scaling, so that one without a type is unclear.
Result<std::string> RopeType(const ConfigReader& reader, std::string_view key) {
  ASSIGN_OR_RETURN(const ConfigReader rope, reader.Object(key));
  ASSIGN_OR_RETURN(const std::string old, rope.Text("type", key == "rope_scaling" ? "missing" : "default"));
  return rope.Text("rope_type", old);
}

// Every key must be there: each model has its own values.
Result<RopeStretch> ReadRopeStretch(const ConfigReader& rope) {
  for (const std::string_view key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    if (!rope.Has(key)) return BadConfig(key, "missing, and rope_type llama3 needs it");
  }
  RopeStretch stretch;
  ASSIGN_OR_RETURN(stretch.factor, rope.PositiveNumber("factor", 1));
  ASSIGN_OR_RETURN(stretch.low_frequency_factor, rope.PositiveNumber("low_freq_factor", 1));
  ASSIGN_OR_RETURN(stretch.high_frequency_factor, rope.PositiveNumber("high_freq_factor", 1));
  ASSIGN_OR_RETURN(const std::int64_t positions, rope.Size("original_max_position_embeddings"));
  stretch.original_positions = static_cast<double>(positions);
  if (stretch.high_frequency_factor <= stretch.low_frequency_factor) {
    return BadConfig("high_freq_factor", fmt::format("got {}, want more than low_freq_factor {}",
                                                     stretch.high_frequency_factor, stretch.low_frequency_factor));
  }
  return stretch;
}

Status ReadRope(const ConfigReader& reader, ModelConfig& model) {
  for (const std::string_view key : {"rope_scaling", "rope_parameters"}) {
    ASSIGN_OR_RETURN(const std::string type, RopeType(reader, key));
    if (!reader.Has(key) || type == "default") continue;
    model.rope_scaling = type;
    if (type != "llama3") continue;
    ASSIGN_OR_RETURN(const ConfigReader rope, reader.Object(key));
    ASSIGN_OR_RETURN(model.rope_stretch, ReadRopeStretch(rope));
  }
  ASSIGN_OR_RETURN(const double theta, reader.PositiveNumber("rope_theta", 10000.0));
  ASSIGN_OR_RETURN(const ConfigReader parameters, reader.Object("rope_parameters"));
  ASSIGN_OR_RETURN(model.rope_theta, parameters.PositiveNumber("rope_theta", theta));
  if (reader.Has("rope_theta") && model.rope_theta != theta) {
    return BadConfig("rope_theta", fmt::format("got {}, but {} in rope_parameters", theta, model.rope_theta));
  }
  ASSIGN_OR_RETURN(model.rotary_fraction, reader.PositiveNumber("partial_rotary_factor", 1.0));
  return OkStatus();
}

Status ReadAttentionWindow(const ConfigReader& reader, ModelConfig& model) {
  ASSIGN_OR_RETURN(const bool windowed, reader.Flag("use_sliding_window"));
  if (windowed) model.attention_window = "use_sliding_window: true";
  // Where the switch is there and off, the window's size means nothing.
  if (!reader.Has("use_sliding_window")) {
    ASSIGN_OR_RETURN(const std::int64_t window, reader.Size("sliding_window", model.max_positions));
    if (window < model.max_positions) model.attention_window = fmt::format("sliding_window: {}", window);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> types, reader.Texts("layer_types"));
  const auto other = std::ranges::find_if(types, [](const auto& type) { return type != "full_attention"; });
  if (other != types.end()) model.attention_window = fmt::format("layer_types: {}", other->substr(0, 80));
  return OkStatus();
}

Status ReadSettings(const ConfigReader& reader, ModelConfig& model) {
  ASSIGN_OR_RETURN(model.activation, reader.Text("hidden_act", "silu"));
  ASSIGN_OR_RETURN(model.activation, reader.Text("hidden_activation", model.activation));
  RETURN_IF_ERROR(ReadAttentionWindow(reader, model));
  ASSIGN_OR_RETURN(model.quantization, ReadQuantization(reader));
  return OkStatus();
}

}  // namespace

bool ModelConfig::HasExperts(std::int64_t layer) const {
  return experts.count > 0 && !std::ranges::binary_search(experts.dense_layers, layer);
}

std::string ModelConfig::Description() const {
  std::string text = fmt::format(
      "{} layers={} hidden={} query_heads={} kv_heads={} head_size={} ffn={} vocabulary={} max_positions={} "
      "rms_norm_eps={} rope_theta={} tied_head={} qk_norm={}",
      architecture, layers, hidden, query_heads, kv_heads, head_size, ffn, vocabulary, max_positions, rms_norm_eps,
      rope_theta, tied_head, qk_norm);
  const ModelConfig plain;
  const auto add = [&text](std::string_view name, const auto& value, const auto& usual) {
    if (value != usual) text += fmt::format(" {}={}", name, value);
  };
  add("value_head_size", value_head_size, plain.value_head_size);
  add("qkv_bias", qkv_bias, plain.qkv_bias);
  add("out_bias", out_bias, plain.out_bias);
  add("ffn_bias", ffn_bias, plain.ffn_bias);
  add("experts", experts.count, 0);
  add("experts_per_token", experts.per_token, 0);
  add("expert_ffn", experts.ffn, 0);
  add("shared_expert_ffn", experts.shared_ffn, 0);
  add("router_bias", experts.router_bias, false);
  if (!experts.dense_layers.empty()) text += fmt::format(" dense_layers={}", fmt::join(experts.dense_layers, ","));
  add("latent_query_rank", latent.query_rank, 0);
  add("latent_kv_rank", latent.kv_rank, 0);
  add("nope_head_size", latent.nope_head_size, 0);
  add("rope_head_size", latent.rope_head_size, 0);
  add("activation", activation, plain.activation);
  add("rope_scaling", rope_scaling, plain.rope_scaling);
  add("rope_factor", rope_stretch.factor, plain.rope_stretch.factor);
  add("rope_low_frequency_factor", rope_stretch.low_frequency_factor, plain.rope_stretch.low_frequency_factor);
  add("rope_high_frequency_factor", rope_stretch.high_frequency_factor, plain.rope_stretch.high_frequency_factor);
  add("rope_original_positions", rope_stretch.original_positions, plain.rope_stretch.original_positions);
  add("rotary_fraction", rotary_fraction, plain.rotary_fraction);
  add("attention_window", attention_window, plain.attention_window);
  add("quantization", quantization.ToString(), "");
  return text;
}

Result<ModelConfig> ParseModelConfig(std::string_view config_json) {
  ASSIGN_OR_RETURN(const ConfigReader top, ConfigReader::Parse(config_json));
  ASSIGN_OR_RETURN(const Architecture* architecture, ArchitectureOf(top));
  ASSIGN_OR_RETURN(const ConfigReader reader, architecture->text_config.empty()
                                                  ? Result<ConfigReader>(top)
                                                  : top.Object(architecture->text_config));
  ModelConfig model;
  model.architecture = architecture->name;
  model.qk_norm = architecture->qk_norm;
  RETURN_IF_ERROR(ReadSizes(reader, model));
  RETURN_IF_ERROR(ReadHeadSizes(reader, architecture->head_size, model));
  RETURN_IF_ERROR(ReadBiases(reader, architecture->always_qkv_bias, model));
  RETURN_IF_ERROR(ReadRope(reader, model));
  RETURN_IF_ERROR(ReadSettings(reader, model));
  ASSIGN_OR_RETURN(model.tied_head, reader.Flag("tie_word_embeddings", architecture->tied_by_default));
  ASSIGN_OR_RETURN(model.tied_head, top.Flag("tie_word_embeddings", model.tied_head));
  if (architecture->read != nullptr) RETURN_IF_ERROR(architecture->read(reader, model));
  return model;
}

}  // namespace bascule
