// What lies in buckets, for messages about those that did not arrive.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "bridge/plan/plan.h"

namespace bascule {

// The tensors that have a part in `buckets`, which are numbers of buckets of the plan, in the plan's order: "a, b and 3
// more".
std::string TensorsIn(const Plan& plan, std::span<const std::uint32_t> buckets);

}  // namespace bascule
