#include "engine_side/decode/rank_shape.h"

#include <algorithm>
#include <string_view>

#include "kernels/rope.h"

namespace bascule {
namespace {

Status Uneven(std::string_view what, std::int64_t size, int ranks) {
  return Status::InvalidArgument("bad_options", fmt::format("{} {} cannot be shared by {} ranks", size, what, ranks));
}

}  // namespace

Result<RankShape> RankShapeOf(const ModelConfig& config, const EngineTensors& tensors, int ranks) {
  if (ranks < 1) return Status::InvalidArgument("bad_options", fmt::format("ranks={}", ranks));
  if (config.query_heads % ranks != 0) return Uneven("query heads", config.query_heads, ranks);
  if (config.kv_heads % ranks != 0 && ranks % config.kv_heads != 0) return Uneven("KV heads", config.kv_heads, ranks);
  if (config.ffn % ranks != 0) return Uneven("feed-forward elements", config.ffn, ranks);
  if (tensors.padded_vocabulary % ranks != 0) return Uneven("vocabulary rows", tensors.padded_vocabulary, ranks);
  RankShape shape{.ranks = ranks,
                  .query_heads = config.query_heads / ranks,
                  .kv_heads = std::max(config.kv_heads / ranks, std::int64_t{1}),
                  .ffn = config.ffn / ranks,
                  .vocabulary = tensors.padded_vocabulary / ranks};
  shape.query_size = shape.query_heads * config.head_size;
  shape.kv_size = shape.kv_heads * config.head_size;
  return shape;
}

std::vector<double> FrequenciesOf(const ModelConfig& config) {
  std::vector<double> frequencies = RopeFrequencies(config.rope_theta, config.head_size);
  if (config.rope_scaling == "llama3") StretchFrequencies(config.rope_stretch, frequencies);
  return frequencies;
}

}  // namespace bascule
