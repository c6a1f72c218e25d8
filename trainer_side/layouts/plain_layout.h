// Stage: layout ([layout] -> plan -> bucket -> transport)
//
// Full tensors under their logical names on every rank: one process, or data parallelism that copies the model (DDP).
// The planner shares the sending among the ranks. A single rank is PlainLayout of bridge/layout/layout.h.
//
// Source: torch.nn.parallel.DistributedDataParallel, whose replicas hold the same parameters after every step.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"

namespace bascule {

// InvalidArgument "bad_trainer_layout"  no ranks
// InvalidArgument "bad_layout"          as CheckLayout
Result<Layout> ReplicatedLayout(const std::vector<TensorSpec>& tensors, int ranks);

}  // namespace bascule
