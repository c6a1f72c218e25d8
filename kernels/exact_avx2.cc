#include "kernels/f32x16_avx2_internal.h"

#include "kernels/attention_body_internal.h"
#include "kernels/elementwise_body_internal.h"
#include "kernels/exact_internal.h"
#include "kernels/gemm_body_internal.h"

namespace bascule::exact_internal {

const ExactKernels kAvx2Kernels = {
    PackRows<avx2::F32x16>, Gemm<avx2::F32x16>,      RmsNorm<avx2::F32x16>, AddTo<avx2::F32x16>,
    Swiglu<avx2::F32x16>,   Attention<avx2::F32x16>, Largest<avx2::F32x16>, Exponentials<avx2::F32x16>,
};

}  // namespace bascule::exact_internal
