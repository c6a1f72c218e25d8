// Stage: layout ([layout] -> plan -> bucket -> transport)
//
// A trainer layout from a few words, as `publish --trainer-layout` has it:
//
//   plain                              every rank holds every tensor                     (plain_layout.h)
//   fsdp                               a flat parameter per layer, cut over the ranks    (flat_parameter_layout.h)
//   mesh:2x2                           fully-sharded x tensor-parallel; also mesh:4 and, with replicas in front,
//                                      mesh:2x2x2; the product is the number of ranks    (mesh_layout.h)
//   megatron:tp=2,pp=2,ep=2            also etp, vpp, first and last (layers of those stages), vocab (multiple of the
//                                      padding); what is left out is 1; needs a config   (megatron_layout.h)
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "model/model_config.h"

namespace bascule {

// `tensors` are the logical tensors in the types the trainer holds; `config` may be null where the layout needs none.
//
// InvalidArgument "bad_trainer_layout"  a spec that is none of these: prints what is known; sizes that do not fit
// `ranks` InvalidArgument "config_missing"      megatron without a config and what the layout's own function refuses
Result<Layout> MakeTrainerLayout(std::string_view spec, int ranks, const std::vector<TensorSpec>& tensors,
                                 const ModelConfig* config);

}  // namespace bascule
