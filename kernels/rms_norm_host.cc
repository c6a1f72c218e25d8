#include "kernels/rms_norm.h"

#include "kernels/exact_internal.h"

namespace bascule {

void RmsNormOnHost(const float* x, std::int64_t size, WeightView w, float eps, float* y, Isa isa) {
  exact_internal::KernelsOf(isa).rms_norm(x, size, w, eps, y);
}

}  // namespace bascule
