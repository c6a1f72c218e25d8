// Random models and parallel layouts for property tests, from a seed.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <random>

#include "model/architecture.h"
#include "model/model_config.h"
#include "model/parallel_layout.h"

namespace bascule {

class RandomModels {
 public:
  explicit RandomModels(std::uint64_t seed) : random_(seed) {}

  std::int64_t Below(std::int64_t count) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(count));
  }

  // A model whose sizes divide as often as not.
  ModelConfig Config() {
    ModelConfig config;
    const auto architectures = Architectures();
    config.architecture = architectures[static_cast<std::size_t>(Below(std::ssize(architectures)))]->name;
    config.layers = 1 + Below(3);
    config.hidden = 4 * (1 + Below(6));
    config.kv_heads = 1 + Below(4);
    config.query_heads = config.kv_heads * (1 + Below(4));
    config.head_size = 2 * (1 + Below(4));
    config.value_head_size = Below(2) == 0 ? 0 : 1 + Below(6);
    config.ffn = 4 * (1 + Below(8));
    config.vocabulary = 1 + Below(200);
    config.tied_head = Below(2) == 0;
    config.qk_norm = Below(2) == 0;
    config.qkv_bias = Below(2) == 0;
    config.out_bias = Below(2) == 0;
    config.experts = {.count = 1 + Below(6), .per_token = 1, .ffn = 1 + Below(8), .shared_ffn = 4 * Below(3)};
    config.latent = {.query_rank = Below(2) * 6, .kv_rank = 1 + Below(5), .nope_head_size = 2, .rope_head_size = 2};
    return config;
  }

  ParallelLayout Parallel() {
    return {.tensor = static_cast<int>(1 + Below(8)),
            .pipeline = static_cast<int>(1 + Below(3)),
            .expert_parallel = Below(2) == 0};
  }

  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_;
};

}  // namespace bascule
