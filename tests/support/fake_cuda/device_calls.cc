// Devices and errors, and the driver's functions that the runtime finds.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "tests/support/fake_cuda/devices.h"
#include "tests/support/fake_cuda/memory.h"
#include "tests/support/fake_cuda/runtime_internal.h"

using namespace bascule::fake_cuda;

namespace {

CUresult FakeMemGetAddressRange(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  const int fault = Faults::Get().Take("cuMemGetAddressRange");
  if (fault != CUDA_SUCCESS && fault != bascule::FakeCuda::kLost) return static_cast<CUresult>(fault);
  void* start = nullptr;
  Block block;
  if (!Memory::Get().Find(reinterpret_cast<const void*>(address), &start, &block)) return CUDA_ERROR_NOT_FOUND;
  *base = reinterpret_cast<CUdeviceptr>(start);
  *bytes = block.bytes;
  return CUDA_SUCCESS;
}

CUresult FakePointerGetAttribute(void* answer, CUpointer_attribute attribute, CUdeviceptr address) {
  void* start = nullptr;
  Block block;
  if (attribute != CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
      !Memory::Get().Find(reinterpret_cast<const void*>(address), &start, &block)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *static_cast<int*>(answer) = block.kind == Kind::kDevice ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult FakeDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult FakeDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = IsSetUp(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

struct DriverFunction {
  std::string_view name;
  void* function;
};
const DriverFunction kDriverFunctions[] = {
    {"cuMemGetAddressRange", reinterpret_cast<void*>(&FakeMemGetAddressRange)},
    {"cuPointerGetAttribute", reinterpret_cast<void*>(&FakePointerGetAttribute)},
    {"cuDeviceGet", reinterpret_cast<void*>(&FakeDeviceGet)},
    {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(&FakeDevicePrimaryCtxGetState)},
};

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  FAKE_CUDA_CALL_OF_NO_DEVICE();
  if (VisibleDevices().empty()) return Remember(cudaErrorNoDevice);
  *count = static_cast<int>(VisibleDevices().size());
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* ordinal) {
  FAKE_CUDA_CALL_OF_NO_DEVICE();
  *ordinal = CurrentOrdinal();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal) {
  FAKE_CUDA_CALL_OF_NO_DEVICE();
  if (ordinal < 0 || ordinal >= static_cast<int>(VisibleDevices().size())) return Remember(cudaErrorInvalidDevice);
  UseOrdinal(ordinal);
  SetUp(ordinal);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  FAKE_CUDA_CALL_OF_NO_DEVICE();
  Describe(VisibleDevices().at(static_cast<std::size_t>(ordinal)), properties);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_CUDA_CALL();
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() { return TakeLastError(); }

const char* cudaGetErrorName(cudaError_t error) {
  thread_local std::string name;
  name = fmt::format("fakeError{}", static_cast<int>(error));
  return name.c_str();
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the fake runtime";
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* why) {
  FAKE_CUDA_CALL_OF_NO_DEVICE();
  const auto found = std::ranges::find(kDriverFunctions, symbol, &DriverFunction::name);
  *function = found == std::end(kDriverFunctions) ? nullptr : found->function;
  *why = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
