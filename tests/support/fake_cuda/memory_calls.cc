// Memory, and what other processes see of it.
#include <cuda_runtime_api.h>

#include "tests/support/fake_cuda/capture.h"
#include "tests/support/fake_cuda/devices.h"
#include "tests/support/fake_cuda/memory.h"
#include "tests/support/fake_cuda/runtime_internal.h"

using namespace bascule::fake_cuda;

extern "C" {

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  FAKE_CUDA_CALL();
  FAKE_CUDA_NOT_WHILE_CAPTURING();
  return Remember(Memory::Get().Allocate(bytes, CurrentDevice(), Kind::kDevice, address));
}

cudaError_t cudaFree(void* address) {
  FAKE_CUDA_CALL();
  FAKE_CUDA_NOT_WHILE_CAPTURING();
  return Remember(Memory::Get().Free(address, Kind::kDevice));
}

// Only tests call these two, to see them refused.
cudaError_t cudaMallocAsync(void** address, std::size_t bytes, cudaStream_t) {
  FAKE_CUDA_CALL();
  return Remember(Memory::Get().Allocate(bytes, CurrentDevice(), Kind::kPool, address));
}
cudaError_t cudaMallocManaged(void** address, std::size_t bytes, unsigned) {
  FAKE_CUDA_CALL();
  return Remember(Memory::Get().Allocate(bytes, CurrentDevice(), Kind::kManaged, address));
}

cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  FAKE_CUDA_CALL();
  FAKE_CUDA_NOT_WHILE_CAPTURING();
  return Remember(Memory::Get().Allocate(bytes, CurrentDevice(), Kind::kPinned, address));
}

cudaError_t cudaFreeHost(void* address) {
  FAKE_CUDA_CALL();
  FAKE_CUDA_NOT_WHILE_CAPTURING();
  return Remember(Memory::Get().Free(address, Kind::kPinned));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  FAKE_CUDA_CALL();
  void* base = nullptr;
  Block block;
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = -2;
  if (!Memory::Get().Find(address, &base, &block)) return cudaSuccess;
  attributes->type = block.kind == Kind::kPinned    ? cudaMemoryTypeHost
                     : block.kind == Kind::kManaged ? cudaMemoryTypeManaged
                                                    : cudaMemoryTypeDevice;
  attributes->device = OrdinalOf(block.device);
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  FAKE_CUDA_CALL();
  return Remember(Memory::Get().Export(address, handle));
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned) {
  FAKE_CUDA_CALL();
  return Remember(Memory::Get().Open(handle, CurrentDevice(), address));
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  FAKE_CUDA_CALL();
  return Remember(Memory::Get().Close(address));
}

}  // extern "C"
