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
  return CudaStatus(cudaLaunchKernelExC(&config, kernel, arguments), name);
}

}  // namespace bascule
