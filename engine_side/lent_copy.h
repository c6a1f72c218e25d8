// Stage: staging (daemon -> [staging] -> verify -> flip)
//
// What a cache daemon lends is memory of the host. A slot on a device gets a copy of it, by the way that buckets take:
// a copy is proven like anything that is received, whatever the daemon has proven before.
#pragma once

#include <functional>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "engine_side/lent_memory.h"
#include "engine_side/receive_plan.h"
#include "engine_side/staging.h"
#include "engine_side/verifier.h"

namespace bascule {

// Copies every bucket of `plan` from `lent`, which holds a version as slots of `engine_layout` do, to the slot of
// `staging`, some at a time, and notes in `verifier` the digests of what was written. Goes on as long as `wanted` says
// so.
//
// Errors of SlotWork; Cancelled "cancelled"  it was not wanted to the end
Status CopyLent(const ReceivePlan& plan, const Layout& engine_layout, const LentMemory& lent, const Staging& staging,
                Verifier& verifier, const std::function<bool()>& wanted);

}  // namespace bascule
