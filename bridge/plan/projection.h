// The part of a plan that one rank needs, once all agree on the whole.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "bridge/plan/plan.h"

namespace bascule {

// What sending rank `rank` needs of `plan`: buckets of other ranks keep their number, route and size, but not their
// slices, which are most of a plan's memory. The digest stays that of the whole.
Plan ProjectionOf(Plan plan, std::int32_t rank);

// Memory that the slices of `plan` take.
std::int64_t SliceMemory(const Plan& plan);

}  // namespace bascule
