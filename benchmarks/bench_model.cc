#include "benchmarks/bench_model.h"

#include <algorithm>
#include <cstring>

#include "benchmarks/measure.h"

namespace bascule {
namespace {

constexpr std::int64_t kBf16Bytes = 2;
constexpr std::int64_t kLargeModelBytes = 64'000'000;

std::int64_t LayerBytes(const ModelConfig& config) {
  const std::int64_t attention = (2 * config.query_heads + 2 * config.kv_heads) * config.head_size;
  return kBf16Bytes * config.hidden * (attention + 3 * config.ffn);
}

}  // namespace

ModelConfig ModelOfAbout(std::int64_t bytes) {
  const std::int64_t width = bytes >= kLargeModelBytes ? 1024 : 64;
  ModelConfig config{.architecture = "Qwen3ForCausalLM",
                     .layers = 1,
                     .hidden = width,
                     .query_heads = 16,
                     .kv_heads = 8,
                     .head_size = width / 8,
                     .ffn = 3 * width,
                     .vocabulary = std::max<std::int64_t>(256, bytes / 4 / (kBf16Bytes * width)),
                     .max_positions = 4096,
                     .rms_norm_eps = 1e-6,
                     .rope_theta = 1e6,
                     .tied_head = true,
                     .qk_norm = true};
  config.layers = std::max<std::int64_t>(1, (bytes - bytes / 4) / LayerBytes(config));
  return config;
}

Result<std::unique_ptr<DeviceBuffer>> RandomBf16Weights(const std::vector<TensorSpec>& tensors) {
  std::int64_t total = 0;
  for (const TensorSpec& tensor : tensors) total += tensor.Bytes();
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceBuffer> buffer, NoiseBuffer(static_cast<std::size_t>(total)));
  // Sign and fraction stay noise; the exponent makes every element's magnitude lie in [2^-7, 2^-6).
  constexpr std::uint16_t kNoiseMask = 0x807f;
  constexpr std::uint16_t kExponent = 120 << 7;
  std::uint16_t* const elements = reinterpret_cast<std::uint16_t*>(buffer->bytes().data());
  for (std::int64_t i = 0; i < total / kBf16Bytes; ++i) {
    elements[i] = static_cast<std::uint16_t>((elements[i] & kNoiseMask) | kExponent);
  }
  return buffer;
}

}  // namespace bascule
