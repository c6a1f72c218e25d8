#include "device/cuda/driver.h"

#include <cuda.h>

#include "device/cuda/error.h"

namespace bascule {
namespace {

// The versions of the driver's functions that this file calls.
constexpr unsigned kDriverVersion = 12000;

template <typename Function>
Status Find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult why = cudaDriverEntryPointSuccess;
  RETURN_IF_ERROR(CudaStatus(cudaGetDriverEntryPointByVersion(name, &found, kDriverVersion, cudaEnableDefault, &why),
                             "cudaGetDriverEntryPointByVersion"));
  if (why != cudaDriverEntryPointSuccess || found == nullptr) {
    return Status::Internal("device_error", fmt::format("the driver has no {}: it is older than CUDA 12", name));
  }
  function = reinterpret_cast<Function>(found);
  return OkStatus();
}

// The driver asks for the calling thread's context, which only some calls of the runtime bind.
template <typename Function>
Status FindAndBind(const char* name, Function& function, const DeviceDescription& device) {
  RETURN_IF_CUDA_ERROR(cudaSetDevice, device, device.ordinal);
  return Find(name, function);
}

Status DriverStatus(CUresult result, std::string_view call, const DeviceDescription& device) {
  // The runtime's errors have the driver's numbers.
  return CudaStatus(static_cast<cudaError_t>(result), call, device);
}

}  // namespace

bool IsSetUp(int ordinal) {
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDevicePrimaryCtxGetState) get_state = nullptr;
  if (!Find("cuDeviceGet", device_get).ok() || !Find("cuDevicePrimaryCtxGetState", get_state).ok()) return true;
  CUdevice device = 0;
  unsigned flags = 0;
  int is_active = 1;
  if (device_get(&device, ordinal) == CUDA_SUCCESS) static_cast<void>(get_state(device, &flags, &is_active));
  return is_active != 0;
}

Result<AllocationRange> AllocationOf(const void* address, const DeviceDescription& device) {
  decltype(&cuMemGetAddressRange) get_range = nullptr;
  RETURN_IF_ERROR(FindAndBind("cuMemGetAddressRange", get_range, device));
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  RETURN_IF_ERROR(
      DriverStatus(get_range(&base, &bytes, reinterpret_cast<CUdeviceptr>(address)), "cuMemGetAddressRange", device));
  return AllocationRange{reinterpret_cast<const std::byte*>(base), static_cast<std::int64_t>(bytes)};
}

Result<bool> CanExport(const void* address, const DeviceDescription& device) {
  decltype(&cuPointerGetAttribute) get_attribute = nullptr;
  RETURN_IF_ERROR(FindAndBind("cuPointerGetAttribute", get_attribute, device));
  int capable = 0;
  RETURN_IF_ERROR(DriverStatus(
      get_attribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, reinterpret_cast<CUdeviceptr>(address)),
      "cuPointerGetAttribute", device));
  return capable != 0;
}

}  // namespace bascule
