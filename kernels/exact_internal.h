// The numeric kernels of one instruction set, as a table: x_host.cc checks and dispatches, host_*.cc fill the tables.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/gemm.h"
#include "kernels/isa.h"
#include "kernels/weight_view.h"

namespace bascule::exact_internal {

// Query heads of one KV head are done four at a time: they share every load of the cache.
inline constexpr int kHeadsAtOnce = 4;

struct ExactKernels {
  void (*pack_rows)(const float* x, std::int64_t rows, std::int64_t k, std::int64_t x_stride, float* packed);
  void (*gemm)(const GemmProblem& problem, std::int64_t first, std::int64_t last);
  void (*rms_norm)(const float* x, std::int64_t size, WeightView w, float eps, float* y);
  void (*add)(WeightView x, std::int64_t size, float* y);
  void (*swiglu)(const float* gate, const float* up, std::int64_t size, float* y);
  void (*attention)(const AttentionProblem& problem);
  float (*largest)(const float* x, std::int64_t size);
  // y[i] = exp((x[i] - shift) / divisor); returns their sum. `y` may be `x`.
  float (*exponentials)(const float* x, std::int64_t size, float shift, float divisor, float* y);
};

extern const ExactKernels kScalarKernels;
#if defined(__x86_64__)
extern const ExactKernels kAvx2Kernels;
extern const ExactKernels kAvx512Kernels;
#endif

const ExactKernels& KernelsOf(Isa isa);

}  // namespace bascule::exact_internal
