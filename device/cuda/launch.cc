#include "device/cuda/launch.h"

#include <cuda_runtime_api.h>

#include "device/cuda/error.h"

namespace bascule {

Status LaunchKernel(const void* kernel, const LaunchShape& shape, StreamHandle stream, std::string_view name,
                    void** arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks, shape.blocks_y);
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.native);
  // A kernel goes to the thread's device, which is not always the stream's.
  int ordinal = 0;
  RETURN_IF_ERROR(CudaStatus(cudaStreamGetDevice(config.stream, &ordinal), name));
  const UseDevice use(ordinal);
  RETURN_IF_ERROR(CudaStatus(use.error(), name));
  return CudaStatus(cudaLaunchKernelExC(&config, kernel, arguments), name);
}

}  // namespace bascule
