// Canonical logical tensors of an architecture and the engine's tensors on them, for every engine rank: fusion
// (qkv_proj, gate_up_proj), slices by rank, replicated KV heads and vocabulary padding, all as map rows.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/manifest/manifest.h"
#include "model/engine_tensors.h"
#include "model/model_config.h"
#include "model/parallel_layout.h"

namespace bascule {

// Canonical names and global shapes, in the order of computation: embedding, layers, final norm, head (unless tied).
// `config` is one for which MakeEngineLayout works.
std::vector<TensorSpec> LogicalTensors(const ModelConfig& config, DType dtype);

struct EngineLayout {
  Layout layout;  // parallel.ranks() engine ranks
  // Where the decoder finds what: the same on every tensor-parallel rank of the first pipeline stage.
  EngineTensors tensors;
  std::vector<QuantizationFamily> families;  // of the logical tensors, for the manifest
};

// The quantised weights of a model with their scales and zero points, sorted by name.
//
// as MakeEngineLayout
Result<std::vector<QuantizationFamily>> QuantizationFamilies(const ModelConfig& config);

// The storage type of a logical tensor: one for all, or what a checkpoint has. Asked once for each canonical name.
using DTypeOf = std::function<DType(std::string_view canonical_name)>;

// Rows of a fused tensor: this rank's q, then k, then v; gate, then up. Embedding and head are padded with zero rows to
// a multiple of 64 and cut evenly. With more tensor-parallel ranks than KV heads rank r holds KV head r * kv_heads /
// tensor. Pipeline stage s holds layers [s * layers / pipeline, (s + 1) * layers / pipeline). Names as in an artifact.
//
// InvalidArgument "bad_config"           sizes that overflow or do not divide (query heads by KV heads)
// InvalidArgument "bad_parallel_layout"  as CheckParallelLayout; more stages than layers
// InvalidArgument "does_not_divide"      a size cannot be shared evenly: tensor and numbers
// InvalidArgument "mixed_dtypes"         logical tensors of one engine tensor have several types: both
// Unimplemented   "unknown_architecture"
Result<EngineLayout> MakeEngineLayout(const ModelConfig& config, const DTypeOf& dtype_of,
                                      const ParallelLayout& parallel = {});
Result<EngineLayout> MakeEngineLayout(const ModelConfig& config, DType dtype, const ParallelLayout& parallel = {});

// `stored` under canonical names: wrappers ("module." in front, "_orig_mod." and the like at any depth) are taken off,
// and a "model." prefix that is missing is put in front. Experts that are stored in one tensor become one logical
// tensor each, on rows of that tensor. Names that are not known even then stay as they are: the planner reports them.
// Local tensors do not change.
//
// `ignore` gets the names that may be left out by rule (rotary_emb.inv_freq, and lm_head.weight of a tied model), as
// patterns for PlanOptions::ignore. That a stored tied head equals the embedding is the caller's to check.
//
// Modules that quantization_config leaves alone and the model does not have are a warning in the log.
//
// InvalidArgument    "name_collision"  two stored names map to one
// InvalidArgument    "bad_config"      as MakeEngineLayout
// FailedPrecondition "shape_mismatch"  both shapes, and the rule behind the one that is wanted
Result<Layout> CanonicalSenderLayout(const ModelConfig& config, const Layout& stored, std::vector<std::string>* ignore);

}  // namespace bascule
