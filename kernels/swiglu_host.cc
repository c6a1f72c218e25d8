#include "kernels/swiglu.h"

#include "kernels/exact_internal.h"

namespace bascule {

void SwigluOnHost(const float* gate, const float* up, std::int64_t size, float* y, Isa isa) {
  exact_internal::KernelsOf(isa).swiglu(gate, up, size, y);
}

}  // namespace bascule
