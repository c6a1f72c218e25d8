#include "kernels/f32x16_avx512_internal.h"

#include "kernels/attention_body_internal.h"
#include "kernels/elementwise_body_internal.h"
#include "kernels/exact_internal.h"
#include "kernels/gemm_body_internal.h"

namespace bascule::exact_internal {

const ExactKernels kAvx512Kernels = {
    PackRows<avx512::F32x16>, Gemm<avx512::F32x16>,      RmsNorm<avx512::F32x16>, AddTo<avx512::F32x16>,
    Swiglu<avx512::F32x16>,   Attention<avx512::F32x16>, Largest<avx512::F32x16>, Exponentials<avx512::F32x16>,
};

}  // namespace bascule::exact_internal
