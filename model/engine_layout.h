// Canonical logical tensors of an architecture and the engine's tensors on them: the one place that knows Hugging Face
// names, fusion (qkv_proj, gate_up_proj) and vocabulary padding (to a multiple of 64).
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "model/model_config.h"

namespace bascule {

// Canonical names and global shapes, in the order of computation: embedding, layers, final norm, head (unless tied).
std::vector<TensorSpec> LogicalTensors(const ModelConfig& config, DType dtype);

// Local tensors of one layer, as indices into RankLayout::tensors.
struct EngineLayerTensors {
  int input_norm = -1, qkv = -1, q_norm = -1, k_norm = -1, out = -1, post_attention_norm = -1, gate_up = -1, down = -1;
};
struct EngineTensors {
  int embedding = -1;
  std::vector<EngineLayerTensors> layers;
  int final_norm = -1;
  int head = -1;  // == embedding when tied
  std::int64_t padded_vocabulary = 0;
};

struct EngineLayout {
  Layout layout;          // one engine rank
  EngineTensors tensors;  // where the decoder finds what
};

// InvalidArgument "bad_config"  sizes that overflow or do not divide (query heads by KV heads)
Result<EngineLayout> MakeEngineLayout(const ModelConfig& config, DType dtype);

// Stored names that differ from the canonical ones (a "model." prefix that is missing, wrappers such as "_orig_mod." or
// "module."), and the names that may be left out: rotary_emb.inv_freq, and lm_head.weight of a tied model. Gives a sender
// layout over the same local tensors whose logical names are canonical; `ignore` gets the names that are dropped by rule.
// A tied head that is stored is checked by the caller (Checkpoint bytes equal to the embedding's) before it is dropped.
//
// InvalidArgument "name_collision"  two stored names map to one
Result<Layout> CanonicalSenderLayout(const ModelConfig& config, const Layout& stored, std::vector<std::string>* ignore);

}  // namespace bascule
