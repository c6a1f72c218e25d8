// How tensor-parallel engine ranks share a decoder: heads, feed-forward elements and vocabulary rows are cut evenly, so
// every rank has the same sizes. Where there are more ranks than KV heads, several ranks hold the same one.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "model/engine_layout.h"
#include "model/model_config.h"

namespace bascule {

// The share of one engine rank.
struct RankShape {
  int ranks = 1;
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t ffn = 0;
  std::int64_t vocabulary = 0;  // rows of embedding and head, padding included
  std::int64_t query_size = 0;  // elements of a token: query_heads * head_size
  std::int64_t kv_size = 0;
  std::int64_t qkv_size() const { return query_size + 2 * kv_size; }
};

// InvalidArgument "bad_options"  a size that the ranks cannot share evenly, with the numbers
Result<RankShape> RankShapeOf(const ModelConfig& config, const EngineTensors& tensors, int ranks);

// By which a model rotates queries and keys (kernels/rope.h).
std::vector<double> FrequenciesOf(const ModelConfig& config);

}  // namespace bascule
