// A cuBLAS for machines without a GPU: the few functions that we call. A product is computed by the worker of the fake
// runtime's streams, in double precision, which is neither the host's order nor a GPU's. As the real library does, it
// works in the workspace that it was given, loses that when it is given another stream, and cannot be captured without.
#include <cublas_v2.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>

#include "kernels/cast.h"
#include "tests/support/fake_cuda/library_seam.h"

#define FAKE_CUBLAS_EXPORT extern "C" __attribute__((visibility("default")))

struct cublasContext {
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

namespace {

// One product, as gemm.h has it: rows of x by rows of w.
struct Product {
  std::int64_t outputs, rows, k;
  const void* w;
  std::int64_t w_stride;
  cudaDataType type;
  const void* x;
  std::int64_t x_stride;
  float* y;
  std::int64_t y_stride;
  float alpha, beta;
};

float At(const void* from, std::int64_t index, cudaDataType type) {
  if (type == CUDA_R_32F) return static_cast<const float*>(from)[index];
  return std::bit_cast<float>(bascule::F32BitsOfBf16Bits(static_cast<const std::uint16_t*>(from)[index]));
}

// Rows [first, first + rows) to `z`, side by side.
void Multiply(const Product& p, std::int64_t first, std::int64_t rows, float* z) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t o = 0; o < p.outputs; ++o) {
      double sum = 0;
      for (std::int64_t i = 0; i < p.k; ++i) {
        sum += double{At(p.x, (first + r) * p.x_stride + i, p.type)} * double{At(p.w, o * p.w_stride + i, p.type)};
      }
      z[r * p.outputs + o] = p.alpha * static_cast<float>(sum);
    }
  }
}

void Deliver(const Product& p, std::int64_t first, std::int64_t rows, const float* z) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t o = 0; o < p.outputs; ++o) {
      float& y = p.y[(first + r) * p.y_stride + o];
      y = z[r * p.outputs + o] + (p.beta == 0 ? 0 : p.beta * y);
    }
  }
}

// In two steps for as many rows as the workspace takes: whoever else works there meanwhile spoils the result.
cudaError_t Enqueue(const Product& product, const cublasContext& context) {
  auto* const workspace = static_cast<float*>(context.workspace);
  const auto fitting = static_cast<std::int64_t>(context.workspace_bytes / sizeof(float)) / product.outputs;
  for (std::int64_t first = 0; first < product.rows; first += fitting) {
    const std::int64_t rows = std::min(fitting, product.rows - first);
    const cudaError_t error =
        bascule_fake_cuda_enqueue(context.stream, [=] { Multiply(product, first, rows, workspace); });
    if (error != cudaSuccess) return error;
    const cudaError_t delivered =
        bascule_fake_cuda_enqueue(context.stream, [=] { Deliver(product, first, rows, workspace); });
    if (delivered != cudaSuccess) return delivered;
  }
  return cudaSuccess;
}

}  // namespace

#define FAKE_CUBLAS_CALL(name) \
  if (const int fault = bascule_fake_cuda_take_fault(name); fault != 0) return static_cast<cublasStatus_t>(fault)

FAKE_CUBLAS_EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  FAKE_CUBLAS_CALL("cublasCreate_v2");
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_CUBLAS_EXPORT cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_CUBLAS_EXPORT cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  FAKE_CUBLAS_CALL("cublasSetStream_v2");
  *handle = {.stream = stream};
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_CUBLAS_EXPORT cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  FAKE_CUBLAS_CALL("cublasSetWorkspace_v2");
  handle->workspace = workspace;
  handle->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

FAKE_CUBLAS_EXPORT cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t transpose_a,
                                                  cublasOperation_t transpose_b, std::int64_t m, std::int64_t n,
                                                  std::int64_t k, const void* alpha, const void* a, cudaDataType a_type,
                                                  std::int64_t lda, const void* b, cudaDataType b_type,
                                                  std::int64_t ldb, const void* beta, void* c, cudaDataType c_type,
                                                  std::int64_t ldc, cublasComputeType_t compute, cublasGemmAlgo_t) {
  FAKE_CUBLAS_CALL("cublasGemmEx_64");
  // What the real library has a product for, of what we ask.
  if (transpose_a != CUBLAS_OP_T || transpose_b != CUBLAS_OP_N || a_type != b_type ||
      (a_type != CUDA_R_32F && a_type != CUDA_R_16BF) || c_type != CUDA_R_32F || compute != CUBLAS_COMPUTE_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (m < 0 || n < 0 || k < 0 || lda < k || ldb < k || ldc < m) return CUBLAS_STATUS_INVALID_VALUE;
  // Its own pool is not ours to capture; and without one the product of a real library would wait for memory.
  const auto row_bytes = static_cast<std::size_t>(m) * sizeof(float);
  if (handle->workspace == nullptr || handle->workspace_bytes < row_bytes) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Product product{.outputs = m,
                        .rows = n,
                        .k = k,
                        .w = a,
                        .w_stride = lda,
                        .type = a_type,
                        .x = b,
                        .x_stride = ldb,
                        .y = static_cast<float*>(c),
                        .y_stride = ldc,
                        .alpha = *static_cast<const float*>(alpha),
                        .beta = *static_cast<const float*>(beta)};
  return Enqueue(product, *handle) == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

FAKE_CUBLAS_EXPORT const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "a status of the fake cuBLAS";
  }
}
