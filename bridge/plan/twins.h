// Twins: buckets of one sending rank that hold the same slices, in the same order and at the same places, for different
// engine ranks. Where a transport can, one payload serves all of them; each has its own number, header and
// acknowledgement all the same. They stand next to each other in the plan.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "bridge/plan/plan.h"

namespace bascule {

// How many buckets from `first` on are twins of it, itself among them: 1 where it has none.
std::uint32_t CountTwins(const Plan& plan, std::uint32_t first);

}  // namespace bascule
