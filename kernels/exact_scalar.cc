#include "kernels/f32x16_scalar_internal.h"

#include "kernels/attention_body_internal.h"
#include "kernels/elementwise_body_internal.h"
#include "kernels/exact_internal.h"
#include "kernels/gemm_body_internal.h"

namespace bascule::exact_internal {

const ExactKernels kScalarKernels = {
    PackRows<scalar::F32x16>, Gemm<scalar::F32x16>,      RmsNorm<scalar::F32x16>, AddTo<scalar::F32x16>,
    Swiglu<scalar::F32x16>,   Attention<scalar::F32x16>, Largest<scalar::F32x16>, Exponentials<scalar::F32x16>,
};

}  // namespace bascule::exact_internal
