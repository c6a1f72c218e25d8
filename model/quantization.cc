#include "model/quantization.h"

#include <fmt/format.h>

#include <charconv>

#include "base/sha256.h"
#include "model/module_patterns.h"

namespace bascule {
namespace {

constexpr std::string_view kFp8 = "fp8";
constexpr std::string_view kCompressedTensors = "compressed-tensors";

Status Unsupported(std::string_view key, std::string_view got, std::string_view supported) {
  return Status::Unimplemented("unsupported_quantization", fmt::format("quantization_config: {}: got {}, supported: {}",
                                                                       key, got.substr(0, 80), supported));
}

// "128x128", as some files have it in place of a list.
std::vector<std::int64_t> SizesOfText(std::string_view text) {
  std::vector<std::int64_t> sizes;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end; ++at) {
    std::int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    if (error != std::errc() || (next != end && *next != 'x')) return {};
    sizes.push_back(size);
    at = next;
  }
  return sizes;
}

Result<ScaleGroup> ReadBlock(const ConfigReader& reader, std::string_view key) {
  std::vector<std::int64_t> sizes;
  if (auto list = reader.Counts(key); list.ok()) {
    sizes = *std::move(list);
  } else {
    ASSIGN_OR_RETURN(const std::string text, reader.Text(key, ""));
    sizes = SizesOfText(text);
  }
  if (sizes.size() != 2 || sizes[0] < 1 || sizes[1] < 1 || sizes[0] > 1 << 20 || sizes[1] > 1 << 20) {
    return BadConfig(key, fmt::format("got {}, want two sizes from 1 to {}", reader.Shown(key), 1 << 20));
  }
  return ScaleGroup{sizes[0], sizes[1]};
}

// ---- fp8 ----------------------------------------------------------------------------------------------------------

// The list has had three names.
Result<std::vector<std::string>> ReadFp8Ignored(const ConfigReader& reader) {
  std::vector<std::string> ignored;
  for (const std::string_view key : {"modules_to_not_convert", "ignored_layers", "ignore"}) {
    ASSIGN_OR_RETURN(const std::vector<std::string> more, reader.Texts(key));
    ignored.insert(ignored.end(), more.begin(), more.end());
  }
  return ignored;
}

Result<Quantization> ReadFp8(const ConfigReader& reader) {
  ASSIGN_OR_RETURN(const std::string format, reader.Text("fmt", "e4m3"));
  if (format != "e4m3") return Unsupported("fmt", format, "e4m3");
  ASSIGN_OR_RETURN(const std::string activations, reader.Text("activation_scheme", "dynamic"));
  if (activations != "dynamic" && activations != "static") {
    return Unsupported("activation_scheme", activations, "dynamic, static");
  }
  ASSIGN_OR_RETURN(const std::string kv_cache, reader.Text("kv_cache_scheme", ""));
  if (!kv_cache.empty() && kv_cache != "static") return Unsupported("kv_cache_scheme", kv_cache, "static");
  WeightScheme scheme;
  scheme.input_scale = activations == "static";
  if (reader.Has("weight_block_size")) {
    ASSIGN_OR_RETURN(scheme.group, ReadBlock(reader, "weight_block_size"));
    scheme.scale_name = "weight_scale_inv";
  }
  Quantization quantization;
  quantization.method = kFp8;
  quantization.groups.push_back({.targets = {"Linear"}, .scheme = std::move(scheme)});
  quantization.kv_scales = !kv_cache.empty();
  ASSIGN_OR_RETURN(quantization.ignored, ReadFp8Ignored(reader));
  return quantization;
}

// ---- compressed-tensors -------------------------------------------------------------------------------------------

Status ReadStorage(const ConfigReader& weights, std::string_view format, WeightScheme& scheme) {
  ASSIGN_OR_RETURN(const std::string type, weights.Text("type", "int"));
  ASSIGN_OR_RETURN(scheme.bits, weights.Size("num_bits", 8));
  const bool naive = format == "naive-quantized";
  if ((format == "float-quantized" || naive) && type == "float" && scheme.bits == 8) {
    scheme.storage = WeightStorage::kFp8;
  } else if ((format == "int-quantized" || naive) && type == "int" && scheme.bits == 8) {
    scheme.storage = WeightStorage::kInt8;
  } else if (format == "pack-quantized" && type == "int" && (scheme.bits == 8 || scheme.bits == 4)) {
    scheme.storage = WeightStorage::kPacked;
  } else {
    return Unsupported("format", fmt::format("{} with {} of {} bits", format, type, scheme.bits),
                       "float-quantized (8), int-quantized (8), naive-quantized (8), pack-quantized (int of 4, 8)");
  }
  return OkStatus();
}

Result<ScaleGroup> ReadGroup(const ConfigReader& weights) {
  ASSIGN_OR_RETURN(const std::string strategy,
                   weights.Text("strategy", weights.Has("group_size") ? "group" : "tensor"));
  if (strategy == "tensor") return ScaleGroup{0, 0};
  if (strategy == "channel") return ScaleGroup{1, 0};
  if (strategy == "block") return ReadBlock(weights, "block_structure");
  if (strategy != "group") return Unsupported("strategy", strategy, "tensor, channel, group, block");
  ASSIGN_OR_RETURN(const std::int64_t size, weights.Size("group_size"));
  return ScaleGroup{1, size};
}

Status ReadActivations(const ConfigReader& group, WeightScheme& scheme) {
  if (group.Has("output_activations")) return Unsupported("output_activations", "an object", "null");
  if (!group.Has("input_activations")) return OkStatus();
  ASSIGN_OR_RETURN(const ConfigReader input, group.Object("input_activations"));
  ASSIGN_OR_RETURN(const bool dynamic, input.Flag("dynamic"));
  ASSIGN_OR_RETURN(const bool symmetric, input.Flag("symmetric", true));
  scheme.input_scale = !dynamic;
  scheme.input_zero_point = !dynamic && !symmetric;
  return OkStatus();
}

Result<WeightScheme> ReadScheme(const ConfigReader& group, std::string_view format) {
  ASSIGN_OR_RETURN(const ConfigReader weights, group.Object("weights"));
  WeightScheme scheme;
  RETURN_IF_ERROR(ReadStorage(weights, format, scheme));
  ASSIGN_OR_RETURN(scheme.group, ReadGroup(weights));
  ASSIGN_OR_RETURN(const bool symmetric, weights.Flag("symmetric", true));
  scheme.zero_point = !symmetric;
  // "group" stores an order of columns (weight_g_idx), which no slice of columns can keep.
  const std::string order = weights.Shown("actorder");
  if (order != "null" && order != "false" && order != "\"weight\"" && order != "\"static\"") {
    return Unsupported("actorder", order, "null, weight, static");
  }
  RETURN_IF_ERROR(ReadActivations(group, scheme));
  return scheme;
}

Result<bool> ReadKvScales(const ConfigReader& reader) {
  if (!reader.Has("kv_cache_scheme")) return false;
  ASSIGN_OR_RETURN(const ConfigReader scheme, reader.Object("kv_cache_scheme"));
  ASSIGN_OR_RETURN(const bool dynamic, scheme.Flag("dynamic"));
  ASSIGN_OR_RETURN(const bool symmetric, scheme.Flag("symmetric", true));
  ASSIGN_OR_RETURN(const std::string strategy, scheme.Text("strategy", "tensor"));
  if (!symmetric || strategy != "tensor") {
    return Unsupported("kv_cache_scheme", fmt::format("{}, symmetric {}", strategy, symmetric), "tensor, symmetric");
  }
  return !dynamic;
}

Result<Quantization> ReadCompressedTensors(const ConfigReader& reader) {
  ASSIGN_OR_RETURN(const ConfigReader sparsity, reader.Object("sparsity_config"));
  ASSIGN_OR_RETURN(const std::string sparse, sparsity.Text("format", "dense"));
  if (sparse != "dense") return Unsupported("sparsity_config", sparse, "dense");
  Quantization quantization;
  quantization.method = kCompressedTensors;
  ASSIGN_OR_RETURN(const std::string format, reader.Text("format", "missing"));
  ASSIGN_OR_RETURN(const ConfigReader groups, reader.Object("config_groups"));
  for (const std::string& name : groups.Keys()) {
    ASSIGN_OR_RETURN(const ConfigReader group, groups.Object(name));
    ASSIGN_OR_RETURN(const std::string own_format, group.Text("format", format));
    SchemeGroup scheme_group;
    ASSIGN_OR_RETURN(scheme_group.targets, group.Texts("targets"));
    ASSIGN_OR_RETURN(scheme_group.scheme, ReadScheme(group, own_format));
    quantization.groups.push_back(std::move(scheme_group));
  }
  if (quantization.groups.empty()) return BadConfig("config_groups", "no group");
  ASSIGN_OR_RETURN(quantization.ignored, reader.Texts("ignore"));
  ASSIGN_OR_RETURN(quantization.kv_scales, ReadKvScales(reader));
  return quantization;
}

std::string SizeText(std::int64_t size) { return size == 0 ? "all" : std::to_string(size); }

}  // namespace

std::string WeightScheme::ToString() const {
  const std::string_view kind = storage == WeightStorage::kFp8    ? "fp8"
                                : storage == WeightStorage::kInt8 ? "int8"
                                : bits == 4                       ? "packed int4"
                                                                  : "packed int8";
  return fmt::format("{} {}x{} {}{}{}{}", kind, SizeText(group.rows), SizeText(group.columns), scale_name,
                     zero_point ? " weight_zero_point" : "", input_scale ? " input_scale" : "",
                     input_zero_point ? " input_zero_point" : "");
}

std::string Quantization::ToString() const {
  if (method.empty()) return "";
  std::string text = method;
  for (const SchemeGroup& group : groups) {
    text += fmt::format(" [{}: {}]", fmt::join(group.targets, ","), group.scheme.ToString());
  }
  // A list of hundreds of names stays one word.
  if (!ignored.empty()) {
    const std::string list = fmt::format("{}", fmt::join(ignored, "\n"));
    text += fmt::format(" ignored={}:{}", ignored.size(), Sha256Of(list).ToHex().substr(0, 16));
  }
  return text + (kv_scales ? " kv_scales" : "");
}

Quantization Fp8BlockQuantization() {
  return {.method = std::string(kFp8),
          .groups = {{.targets = {"Linear"}, .scheme = {.group = {128, 128}, .scale_name = "weight_scale_inv"}}},
          .ignored = {},
          .kv_scales = false};
}

std::string Fp8BlockConfigJson() {
  return R"json({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
                 "weight_scale_rule": "max(amax / 448, 2^-116)"})json";
}

Result<Quantization> ReadQuantization(const ConfigReader& config) {
  Quantization quantization;
  if (!config.Has("quantization_config")) return quantization;
  ASSIGN_OR_RETURN(const ConfigReader reader, config.Object("quantization_config"));
  ASSIGN_OR_RETURN(const std::string method, reader.Text("quant_method", "missing"));
  if (method == kFp8) {
    ASSIGN_OR_RETURN(quantization, ReadFp8(reader));
  } else if (method == kCompressedTensors) {
    ASSIGN_OR_RETURN(quantization, ReadCompressedTensors(reader));
  } else {
    return Unsupported("quant_method", method, "fp8, compressed-tensors");
  }
  RETURN_IF_ERROR(ModulePatterns::Make(quantization.ignored).status());
  for (const SchemeGroup& group : quantization.groups) RETURN_IF_ERROR(ModulePatterns::Make(group.targets).status());
  return quantization;
}

}  // namespace bascule
