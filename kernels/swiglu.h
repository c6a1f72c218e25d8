// y[i] = gate[i] / (1 + exp(-gate[i])) * up[i], elementwise in fp32, the same bits under every instruction set.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace bascule {

// `y` may be `gate` or `up`.
void SwigluOnHost(const float* gate, const float* up, std::int64_t size, float* y, Isa isa = BestIsa());

}  // namespace bascule

// Roofline, per element: 8 bytes read and 4 written, and one exponential.
