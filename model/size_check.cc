#include "model/size_check.h"

#include <algorithm>

namespace bascule {
namespace {

constexpr std::int64_t kExpertsMax = std::int64_t{1} << 16;  // over all layers
constexpr std::int64_t kSizeMax = std::int64_t{1} << 31;

Status BadSize(std::string message) { return Status::InvalidArgument("bad_config", std::move(message)); }

Status CheckRange(std::string_view name, std::int64_t size, std::int64_t least) {
  if (size >= least && size <= kSizeMax) return OkStatus();
  return BadSize(fmt::format("{}: got {}, want {} to {}", name, size, least, kSizeMax));
}

Status CheckHeads(const ModelConfig& config) {
  const std::int64_t widest =
      std::max({config.head_size, config.ValueHeadSize(), config.latent.nope_head_size + config.latent.rope_head_size});
  if (config.query_heads > kSizeMax / widest || config.kv_heads > kSizeMax / (2 * widest)) {
    return BadSize(fmt::format("heads: {} or {} of size {} are more than {} rows", config.query_heads, config.kv_heads,
                               widest, kSizeMax));
  }
  if (config.query_heads % config.kv_heads != 0) {
    return BadSize(
        fmt::format("query_heads: {} is not a multiple of kv_heads {}", config.query_heads, config.kv_heads));
  }
  return OkStatus();
}

Status CheckExperts(const ModelConfig& config) {
  const ExpertSizes& experts = config.experts;
  RETURN_IF_ERROR(CheckRange("experts", experts.count, 0));
  RETURN_IF_ERROR(CheckRange("expert ffn", experts.ffn, experts.count > 0 ? 1 : 0));
  RETURN_IF_ERROR(CheckRange("shared expert ffn", experts.shared_ffn, 0));
  if (experts.count > kExpertsMax / config.layers) {
    return BadSize(
        fmt::format("experts: {} in each of {} layers are more than {}", experts.count, config.layers, kExpertsMax));
  }
  return OkStatus();
}

}  // namespace

Status CheckSizes(const ModelConfig& config) {
  struct Size {
    std::string_view name;
    std::int64_t size, least;
  };
  const Size sizes[] = {{"layers", config.layers, 1},
                        {"hidden", config.hidden, 1},
                        {"query_heads", config.query_heads, 1},
                        {"kv_heads", config.kv_heads, 1},
                        {"head_size", config.head_size, 1},
                        {"value_head_size", config.value_head_size, 0},
                        {"ffn", config.ffn, 1},
                        {"vocabulary", config.vocabulary, 1},
                        {"query_rank", config.latent.query_rank, 0},
                        {"kv_rank", config.latent.kv_rank, 0},
                        {"nope_head_size", config.latent.nope_head_size, 0},
                        {"rope_head_size", config.latent.rope_head_size, 0}};
  for (const Size& size : sizes) RETURN_IF_ERROR(CheckRange(size.name, size.size, size.least));
  if (config.layers > kLayersMax) return BadSize(fmt::format("layers: got {}, most {}", config.layers, kLayersMax));
  RETURN_IF_ERROR(CheckHeads(config));
  return CheckExperts(config);
}

}  // namespace bascule
