// Instruction sets that the numeric kernels are written for. Every kernel gives the same bits under each of them: the
// choice is about speed only.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <string_view>
#include <vector>

namespace bascule {

enum class Isa { kScalar, kAvx2, kAvx512 };

std::string_view IsaName(Isa isa);  // "scalar" "avx2" "avx512"

// What this build and this processor both have, slowest first; kScalar is always there.
std::vector<Isa> AvailableIsas();

// The last of AvailableIsas().
Isa BestIsa();

}  // namespace bascule
