// Where the weights of one engine rank lie in one step.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <vector>

#include "engine_side/decode/decoder.h"
#include "engine_side/decode/step_weights.h"
#include "kernels/weight_view.h"

namespace bascule {

// Biases and norms that the model lacks have no data.
struct LayerWeights {
  WeightView input_norm, qkv, qkv_bias, q_norm, k_norm, out, out_bias;
  WeightView post_attention_norm, gate_up, gate_up_bias, down, down_bias;
};

struct RankWeights {
  // Of `rank`, which `weights` hold for a decoder of `options`.
  static RankWeights Of(const DecoderOptions& options, int rank, const StepWeights& weights);

  std::vector<LayerWeights> layers;
  WeightView embedding, final_norm, head;
};

}  // namespace bascule
