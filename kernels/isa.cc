#include "kernels/isa.h"

#include "base/status.h"
#include "kernels/exact_internal.h"

namespace bascule {

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::vector<Isa> AvailableIsas() {
  std::vector<Isa> isas = {Isa::kScalar};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    isas.push_back(Isa::kAvx2);
    if (__builtin_cpu_supports("avx512f")) isas.push_back(Isa::kAvx512);
  }
#endif
  return isas;
}

Isa BestIsa() {
  static const Isa best = AvailableIsas().back();
  return best;
}

namespace exact_internal {

const ExactKernels& KernelsOf(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return kAvx512Kernels;
  if (isa == Isa::kAvx2) return kAvx2Kernels;
#endif
  CHECK(isa == Isa::kScalar);
  return kScalarKernels;
}

}  // namespace exact_internal
}  // namespace bascule
