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

// Rows of a fused tensor: q, then k, then v; gate, then up. Embedding and head are padded with zero rows to a
// multiple of 64. Names as in an artifact.
//
// InvalidArgument "bad_config"  sizes that overflow or do not divide (query heads by KV heads)
Result<EngineLayout> MakeEngineLayout(const ModelConfig& config, DType dtype);

// `stored` under canonical names: wrappers ("module." in front, "_orig_mod." and the like at any depth) are taken off,
// and a "model." prefix that is missing is put in front. Names that are not known even then stay as they are: the
// planner reports them. Rows and local tensors do not change.
//
// `ignore` gets the names that may be left out by rule (rotary_emb.inv_freq, and lm_head.weight of a tied model), as
// patterns for PlanOptions::ignore. That a stored tied head equals the embedding is the caller's to check.
//
// InvalidArgument "name_collision"  two stored names map to one
// InvalidArgument "bad_config"      as MakeEngineLayout
Result<Layout> CanonicalSenderLayout(const ModelConfig& config, const Layout& stored, std::vector<std::string>* ignore);

}  // namespace bascule
