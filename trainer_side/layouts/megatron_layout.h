// Stage: layout ([layout] -> plan -> bucket -> transport)
//
// What each rank of a Megatron-LM trainer holds, under Megatron's names (Transformer Engine's layers, grouped experts).
//
//   linear_qkv   rows by query group: its queries, its key, its value, then the next group; cut evenly over the
//                tensor-parallel ranks. Weight and bias alike. Two groups of two queries, tensor = 2:
//                  rank 0: q0 q1 k0 v0     rank 1: q2 q3 k1 v1
//   linear_fc1   every rank its own rows of gate, then its own rows of up. Experts and shared experts alike.
//   linear_proj, linear_fc2   columns, cut evenly; their biases whole on every rank
//   embedding, output_layer   rows, padded to a multiple of vocabulary_multiple * tensor and cut evenly; no row of the
//                             map covers the padding, so it is not sent
//   norms, routers            whole on every rank
//   experts      expert_parallel ranks share them, in order; each numbers its own from 0; expert_tensor ranks cut each
//
// Ranks: tensor-parallel ones next to each other, then data parallelism, pipeline stages last; within a stage experts
// count by themselves: expert_tensor first, then expert_parallel, then copies (order "tp-cp-ep-dp-pp").
// Stage s holds a range of layers and numbers them from 0; with virtual stages it holds several, each a model of its
// own
// ("model1.decoder.layers.0..."): chunk c of stage s is range c * pipeline + s. The first has the embedding, the last
// the final norm and the head. A tied head is a copy of the embedding on the last stage (when there are several), under
// output_layer.weight: two tensors that mean one logical tensor.
//
// Source: github.com/NVIDIA/Megatron-LM, megatron/core: transformer/attention.py (get_query_key_value_tensors), mlp.py
// (gated linear unit), moe/experts.py (TEGroupedMLP), transformer_block.py (get_num_layers_to_build),
// parallel_state.py (RankGenerator), tensor_parallel/layers.py; training/tokenizer (_vocab_size_with_padding). Latent
// attention: transformer/multi_latent_attention.py, with the down projections whole on every rank.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "model/model_config.h"

namespace bascule {

struct MegatronParallel {
  int tensor = 1;
  int pipeline = 1;
  int virtual_stages = 1;               // model chunks per pipeline stage
  int expert = 1;                       // ranks that share the experts
  int expert_tensor = 0;                // ranks that cut each expert; 0: as `tensor`
  int vocabulary_multiple = 128;        // --make-vocab-size-divisible-by
  std::int64_t first_stage_layers = 0;  // --decoder-first-pipeline-num-layers; 0: as every stage
  std::int64_t last_stage_layers = 0;
  int ExpertTensor() const { return expert_tensor == 0 ? tensor : expert_tensor; }
  std::string ToString() const;  // "tp=2,pp=1,ep=1,etp=2,vpp=1"
};

// The layout of `ranks` ranks; what the parallel sizes do not use up is data parallelism (copies). `tensors` are the
// model's logical tensors in the types the trainer holds them in. Those that the model does not have are held whole by
// rank 0 under their logical names, so that the planner can report or ignore them.
//
// InvalidArgument "bad_config"           as MakeModelTable
// InvalidArgument "bad_trainer_layout"   sizes below 1; ranks that are no multiple of the sizes; layers that do not
//                                        divide into stages; virtual stages without a pipeline, or with a first or last
//                                        stage of other length
// InvalidArgument "does_not_divide"      a size cannot be cut evenly: tensor and numbers
// InvalidArgument "mixed_dtypes"         logical tensors of one Megatron tensor have several types: both
// InvalidArgument "shape_mismatch"       a tensor has another shape than the config says: both
// InvalidArgument "tensor_missing"       a tensor of the model is not in `tensors`
// Unimplemented   "unsupported_quantization"  a trainer holds no quantised weights
// Unimplemented   "unsupported_model"    a tensor that Megatron has no name for
// InvalidArgument "bad_layout"           as CheckLayout
Result<Layout> MegatronLayout(const ModelConfig& config, const std::vector<TensorSpec>& tensors,
                              const MegatronParallel& parallel, int ranks);

}  // namespace bascule
