// Stage: verify (staging -> [verify] -> flip)
//
// Digests of memory that is laid out as an engine's, read through its own map: what the map proves of a staged version
// can be asked of the live one at any time, and of an artifact's files.
#pragma once

#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "engine_side/receive_plan.h"
#include "engine_side/verifier.h"

namespace bascule {

// The engine's layout as a plan: whole logical tensors to where the engine holds them.
//
// InvalidArgument "bad_layout"  the layout does not cover its tensors
Result<ReceivePlan> PlanOfEngine(const Layout& engine_layout);

struct MemoryDigest {
  std::vector<TensorDigest> totals;                     // per logical tensor, in layout order
  std::vector<std::vector<TensorDigest>> held_by_rank;  // per rank, the same of what it holds, replicas included
  std::vector<Verifier::Difference> replica_differences;
};

// `plan` is PlanOfEngine's; `work` is at home in the memory. Errors of SlotWork.
Result<MemoryDigest> DigestMemory(const TensorMemory& memory, const Layout& engine_layout, const ReceivePlan& plan,
                                  SlotWork& work = HostSlotWork());

}  // namespace bascule
