// y[i] += x[i], one rounded addition each: the same bits under every instruction set.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "kernels/isa.h"
#include "kernels/weight_view.h"

namespace bascule {

// `x` is weights as they are stored, or floats (WeightType::kF32).
void AddOnHost(WeightView x, std::int64_t size, float* y, Isa isa = BestIsa());

}  // namespace bascule

// Roofline, per element: 4 bytes of y read and written, and x read; in a decode step all of it is in the core's cache.
