// FastGemm by oneDNN, which has bf16 products for AVX-512, its bf16 dot products and AMX, and takes the best that the
// processor has.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>

#include "base/status.h"
#include "kernels/fast_gemm.h"

namespace bascule {

// Unimplemented "numerics_unsupported"  oneDNN has no bf16 product for this processor
Result<std::unique_ptr<FastGemm>> MakeOneDnnGemm();

}  // namespace bascule
