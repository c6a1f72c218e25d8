// A mixture of experts as large as there are, as layouts alone: names and boxes, no byte of a weight. The trainer has
// pipeline stages and experts cut over ranks, attention copied within a stage; the engine has experts cut over all of
// its ranks, and attention cut over groups of ranks and copied between groups.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include "bridge/layout/layout.h"

namespace bascule {

// The default is the model of a trillion parameters that README quotes.
struct MoeSizes {
  int layers = 61;
  int experts = 384;
  std::int64_t hidden = 7168;
  std::int64_t expert_ffn = 2048;
  std::int64_t vocabulary = 163840;
  int heads = 64;

  int trainer_stages = 8;
  int trainer_experts_over = 32;  // ranks of a stage; each of them holds all attention of its stage
  int engine_ranks = 128;
  int engine_attention_over = 16;  // ranks; all others are copies

  friend bool operator==(const MoeSizes&, const MoeSizes&) = default;
  int trainer_ranks() const { return trainer_stages * trainer_experts_over; }
};

// Both have the same logical tensors in the same order. Experts divide evenly over the ranks of either side, heads and
// the vocabulary over `engine_attention_over`.
Layout MoeTrainerLayout(const MoeSizes& sizes);
Layout MoeEngineLayout(const MoeSizes& sizes);

}  // namespace bascule
