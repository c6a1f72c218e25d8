// Stage: layout ([layout] -> plan -> bucket -> transport)
//
// Flat parameters, as FSDP and ZeRO hold them. The tensors of a unit are flattened and concatenated, the whole is
// padded and cut evenly by element: rank r of N holds elements [r * S, (r + 1) * S), with S = ceil(elements / N). The
// cut knows nothing of tensors, so a rank's end may lie anywhere in one, a tensor may lie across many ranks, and the
// last ranks may hold nothing but padding.
//
//   unit [q 6x4 | k 2x4 | norm 3 | pad]    24 + 8 + 3 = 35 elements over 3 ranks: S = 12
//     rank 0: q rows 0-2      rank 1: q rows 3-5      rank 2: k, norm, one element of padding
//
// A range of an n-dimensional tensor is at most 2n - 1 boxes. Each is a dense view of the rank's flat shard: the rank
// has a local tensor for each, and FlatView says where in the shard it begins.
//
// Source: torch/distributed/fsdp/_flat_param.py (FlatParamHandle: torch.cat of the flattened parameters; _get_shard:
// chunk by world size and pad; with use_orig_params every parameter begins at a multiple of 16 bytes), and
// deepspeed/runtime/zero: stage 3 cuts every parameter by itself (a unit of one tensor), stages 1 and 2 one flat group.
// FSDP2 (fully_shard) has no flat parameters: mesh_layout.h describes it.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"

namespace bascule {

// One flat parameter: what one FSDP wrapper, or one ZeRO group, holds.
struct FlatUnit {
  std::string name;                  // "model.layers.0._fsdp_wrapped_module._flat_param"
  std::vector<std::string> tensors;  // logical names, in the order of concatenation
  std::int64_t alignment = 1;        // in elements; every tensor begins at a multiple, with padding in front of it
};

// A local tensor as a part of its rank's shard of a flat parameter.
struct FlatView {
  std::int32_t unit = 0;    // index into the units
  std::int64_t offset = 0;  // of its first element in the rank's shard, in elements
  friend bool operator==(const FlatView&, const FlatView&) = default;
};

struct FlatLayout {
  // Local tensors are named UNIT:TENSOR[BOX]; each has one row, of the same index. Padding has none: it is not sent.
  Layout layout;
  std::vector<std::vector<FlatView>> views;  // per rank, per local tensor
  std::vector<std::int64_t> shard_elements;  // per unit: S, the same on every rank
};

// A tensor may be in several units (tied weights that are stored twice), and each of `tensors` is in one.
//
// InvalidArgument "bad_trainer_layout"  no ranks; a unit without tensors, of a tensor that is not in `tensors`, or with
//                                       an alignment below 1; a tensor in no unit
// InvalidArgument "mixed_dtypes"        tensors of one unit have several types: both (a flat parameter has one)
// InvalidArgument "bad_layout"          as CheckLayout
Result<FlatLayout> FlatParameterLayout(const std::vector<TensorSpec>& tensors, const std::vector<FlatUnit>& units,
                                       int ranks);

// The usual wrapping: a unit for each "model.layers.N", and the rest in the root's. A wrapper whose tensors have
// several types becomes a unit for each further type, named after it: NAME.F32.
std::vector<FlatUnit> UnitPerLayer(const std::vector<TensorSpec>& tensors);

}  // namespace bascule
