// Stage: verify (staging -> [verify] -> flip)
//
// Digests of memory that serves decode, read through the engine's own map: what the map proves of a staged version can
// be asked of the live one at any time.
#pragma once

#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "engine_side/receive_plan.h"
#include "engine_side/weight_lease.h"

namespace bascule {

// The engine's layout as a plan: whole logical tensors to where the engine holds them.
//
// InvalidArgument "bad_layout"  the layout does not cover its tensors
Result<ReceivePlan> PlanOfEngine(const Layout& engine_layout);

// Per logical tensor, in layout order. `plan` is PlanOfEngine's. Uses a few threads of its own.
//
// DataLoss "replicas_differ"  names tensor and ranks
Result<std::vector<TensorDigest>> DigestLease(const WeightLease& lease, const Layout& engine_layout,
                                              const ReceivePlan& plan);

}  // namespace bascule
