// How a checkpoint says that its linear weights are quantised: quantization_config of config.json. Two methods: "fp8"
// (DeepSeek's and Qwen's block-scaled weights, and scales per tensor), and "compressed-tensors" (FP8, int8, and packed
// int8 or int4, with scales per tensor, channel, group or block).
//
// Thread-safety: thread-compatible (values); the functions are pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/config_reader.h"

namespace bascule {

enum class WeightStorage : std::uint8_t {
  kFp8,     // weight: F8_E4M3
  kInt8,    // weight: I8
  kPacked,  // weight_packed: I32, each with 32 / bits neighbours of a row
};

// How many weights share a scale: `rows` of `columns` each. 0: all that there are.
struct ScaleGroup {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  friend bool operator==(const ScaleGroup&, const ScaleGroup&) = default;
};

struct WeightScheme {
  WeightStorage storage = WeightStorage::kFp8;
  std::int64_t bits = 8;
  ScaleGroup group;
  std::string scale_name = "weight_scale";  // or "weight_scale_inv"
  bool zero_point = false;
  bool input_scale = false;  // activations have a scale that was measured beforehand
  bool input_zero_point = false;
  std::string ToString() const;  // "fp8 128x128 weight_scale_inv", "packed int4 1x32 weight_scale zero_point"
  friend bool operator==(const WeightScheme&, const WeightScheme&) = default;
};

// Linears that are quantised alike. Targets are patterns (model/module_patterns.h), or "Linear": all of them.
struct SchemeGroup {
  std::vector<std::string> targets;
  WeightScheme scheme;
  friend bool operator==(const SchemeGroup&, const SchemeGroup&) = default;
};

struct Quantization {
  std::string method;  // empty: plain weights
  std::vector<SchemeGroup> groups;
  std::vector<std::string> ignored;  // patterns of modules that are not
  bool kv_scales = false;            // self_attn.k_scale and v_scale in every layer
  std::string ToString() const;      // one line; empty for plain weights
  friend bool operator==(const Quantization&, const Quantization&) = default;
};

// What `shard --quantize fp8-block` makes (kernels/quantize.h), and what DeepSeek-V3 publishes.
Quantization Fp8BlockQuantization();
// The value of quantization_config that says so.
std::string Fp8BlockConfigJson();

// Of a whole config.json. Plain weights where it has no quantization_config.
//
// InvalidArgument "bad_config"                names the key and the value
// Unimplemented   "unsupported_quantization"  a method, format or setting whose tensors we do not know
Result<Quantization> ReadQuantization(const ConfigReader& config);

}  // namespace bascule
