// Where a decoder finds its tensors: indices into RankLayout::tensors. -1: the model has no such tensor, or this engine
// rank does not hold it.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstdint>
#include <vector>

namespace bascule {

struct EngineLayerTensors {
  int input_norm = -1, qkv = -1, q_norm = -1, k_norm = -1, out = -1, post_attention_norm = -1, gate_up = -1, down = -1;
  int qkv_bias = -1, out_bias = -1, gate_up_bias = -1, down_bias = -1;
  int pre_ffn_norm = -1, post_ffn_norm = -1;                                   // Gemma
  int router = -1, router_bias = -1, experts_gate_up = -1, experts_down = -1;  // mixtures of experts
  int shared_gate_up = -1, shared_down = -1;                                   // the experts that every token takes
  int latent_in = -1, latent_in_bias = -1, q_latent_norm = -1, kv_latent_norm = -1;  // latent attention: to low rank
  int q_from_latent = -1, kv_from_latent = -1;                                       // and back
};

struct EngineTensors {
  int embedding = -1;
  std::vector<EngineLayerTensors> layers;  // of the whole model
  int final_norm = -1;
  int head = -1;  // == embedding when tied
  std::int64_t padded_vocabulary = 0;
};

}  // namespace bascule
