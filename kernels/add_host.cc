#include "kernels/add.h"

#include "kernels/exact_internal.h"

namespace bascule {

void AddOnHost(WeightView x, std::int64_t size, float* y, Isa isa) { exact_internal::KernelsOf(isa).add(x, size, y); }

}  // namespace bascule
