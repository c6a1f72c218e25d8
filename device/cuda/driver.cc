#include "device/cuda/driver.h"

#include <cuda.h>

#include "device/cuda/error.h"

namespace bascule {
namespace {

// The versions of the driver's functions that this file calls.
constexpr unsigned kDriverVersion = 12000;

Result<void*> DriverFunction(const char* name, const DeviceDescription& device) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult why = cudaDriverEntryPointSuccess;
  RETURN_IF_CUDA_ERROR(cudaGetDriverEntryPointByVersion, device, name, &found, kDriverVersion, cudaEnableDefault, &why);
  if (why != cudaDriverEntryPointSuccess || found == nullptr) {
    return Status::Internal("device_error", fmt::format("the driver has no {}: it is older than CUDA 12", name));
  }
  return found;
}

Status DriverStatus(CUresult result, std::string_view call, const DeviceDescription& device) {
  // The runtime's errors have the driver's numbers.
  return CudaStatus(static_cast<cudaError_t>(result), call, device);
}

}  // namespace

Result<AllocationRange> AllocationOf(const void* address, const DeviceDescription& device) {
  ASSIGN_OR_RETURN(void* const found, DriverFunction("cuMemGetAddressRange", device));
  const auto range = reinterpret_cast<decltype(&cuMemGetAddressRange)>(found);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  RETURN_IF_ERROR(
      DriverStatus(range(&base, &bytes, reinterpret_cast<CUdeviceptr>(address)), "cuMemGetAddressRange", device));
  return AllocationRange{reinterpret_cast<const std::byte*>(base), static_cast<std::int64_t>(bytes)};
}

Result<bool> CanExport(const void* address, const DeviceDescription& device) {
  ASSIGN_OR_RETURN(void* const found, DriverFunction("cuPointerGetAttribute", device));
  const auto attribute = reinterpret_cast<decltype(&cuPointerGetAttribute)>(found);
  int capable = 0;
  RETURN_IF_ERROR(DriverStatus(
      attribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, reinterpret_cast<CUdeviceptr>(address)),
      "cuPointerGetAttribute", device));
  return capable != 0;
}

}  // namespace bascule
