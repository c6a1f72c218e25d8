// Root-mean-square normalisation in fp32: y[i] = x[i] * (1 / sqrt(mean(x^2) + eps)) * w[i].
//
// Numerics: the squares are summed in 16 lanes (element i in lane i mod 16, fused, rising), which are added in the tree
// of gemm.h (n = 8, 4, 2, 1). The order depends on `size` only.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "kernels/isa.h"
#include "kernels/weight_view.h"

namespace bascule {

// `y` may be `x`.
void RmsNormOnHost(const float* x, std::int64_t size, WeightView w, float eps, float* y, Isa isa = BestIsa());

}  // namespace bascule

// Roofline, per element: 4 bytes read twice, the second time from cache, 4 written, and the weight read.
