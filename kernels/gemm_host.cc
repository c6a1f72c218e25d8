#include "kernels/gemm.h"

#include <cstring>

#include "base/status.h"
#include "kernels/exact_internal.h"

namespace bascule {

void WidenOnHost(WeightView weights, std::int64_t first, std::int64_t count, float* out) {
  const std::byte* from = weights.From(first).data;
  if (weights.type == WeightType::kF32) {
    std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint16_t high;
    std::memcpy(&high, from + 2 * i, sizeof high);
    const std::uint32_t bits = std::uint32_t{high} << 16;
    std::memcpy(out + i, &bits, sizeof bits);
  }
}

void PackRowsOnHost(const float* x, std::int64_t rows, std::int64_t k, std::int64_t x_stride, float* packed, Isa isa) {
  exact_internal::KernelsOf(isa).pack_rows(x, rows, k, x_stride, packed);
}

void GemmOnHost(const GemmProblem& problem, std::int64_t first, std::int64_t last, Isa isa) {
  CHECK(problem.k > 0 && first >= 0);
  exact_internal::KernelsOf(isa).gemm(problem, first, last);
}

}  // namespace bascule
