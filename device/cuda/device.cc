#include "device/cuda/device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>

#include "device/cuda/driver.h"
#include "device/cuda/error.h"
#include "device/cuda/event.h"
#include "device/cuda/stream.h"

namespace bascule {
namespace {

Status NotExportable(const DeviceDescription& device, std::string_view what) {
  return Status::InvalidArgument(
      "not_exportable", fmt::format("device {} {}: {}; memory of cudaMalloc on this device, please", device.ordinal,
                                    device.uuid.ToString(), what));
}

DeviceDescription Describe(int ordinal, const cudaDeviceProp& properties) {
  DeviceDescription description;
  description.ordinal = ordinal;
  std::ranges::transform(properties.uuid.bytes, description.uuid.bytes.begin(),
                         [](char byte) { return static_cast<std::uint8_t>(byte); });
  description.name = properties.name;
  description.compute_major = properties.major;
  description.compute_minor = properties.minor;
  description.multiprocessors = properties.multiProcessorCount;
  description.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  return description;
}

}  // namespace

Result<std::unique_ptr<DeviceStream>> CudaDevice::MakeStream(StreamPriority priority) {
  return MakeCudaStream(priority, description_);
}

Result<std::unique_ptr<DeviceEvent>> CudaDevice::MakeEvent() {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceEvent> event, MakeCudaEvent(description_));
  return event;
}

Result<SharedEvent> CudaDevice::MakeSharedEvent() { return MakeSharedCudaEvent(description_); }

Result<std::unique_ptr<DeviceEvent>> CudaDevice::OpenEvent(const EventHandle& handle) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceEvent> event, OpenCudaEvent(handle, description_));
  return event;
}

std::unique_ptr<DeviceEvent> CudaDevice::Borrow(void* native_event) {
  return std::make_unique<CudaEvent>(static_cast<cudaEvent_t>(native_event), description_, CudaEvent::Owner::kCaller);
}

Status CudaDevice::CheckReachable(std::span<const std::byte> memory) {
  USE_DEVICE(description_);
  if (memory.empty()) return OkStatus();
  for (const std::byte* const byte : {&memory.front(), &memory.back()}) {
    cudaPointerAttributes attributes{};
    RETURN_IF_CUDA_ERROR(cudaPointerGetAttributes, description_, &attributes, byte);
    const bool own = attributes.type == cudaMemoryTypeDevice && attributes.device == description_.ordinal;
    if (own || attributes.type == cudaMemoryTypeHost || attributes.type == cudaMemoryTypeManaged) continue;
    return Status::InvalidArgument(
        "not_on_device", fmt::format("device {} {}: {} lies in {}", description_.ordinal, description_.uuid.ToString(),
                                     static_cast<const void*>(byte),
                                     attributes.type == cudaMemoryTypeDevice
                                         ? fmt::format("device {}", attributes.device)
                                         : std::string("host memory that is not pinned, or nowhere")));
  }
  return OkStatus();
}

Result<ExportedMemory> CudaDevice::Export(std::span<const std::byte> memory) {
  USE_DEVICE(description_);
  RETURN_IF_ERROR(CheckExportable(memory));
  ASSIGN_OR_RETURN(const AllocationRange range, AllocationOf(memory.data(), description_));
  const std::int64_t offset = memory.data() - range.base;
  if (std::cmp_greater(memory.size(), range.bytes - offset)) {
    return NotExportable(description_, "the memory spans several allocations");
  }
  cudaIpcMemHandle_t handle{};
  RETURN_IF_CUDA_ERROR(cudaIpcGetMemHandle, description_, &handle, const_cast<std::byte*>(range.base));
  return ExportedMemory{std::bit_cast<MemoryHandle>(handle), offset, range.bytes};
}

Status CudaDevice::CheckExportable(std::span<const std::byte> memory) const {
  cudaPointerAttributes attributes{};
  RETURN_IF_CUDA_ERROR(cudaPointerGetAttributes, description_, &attributes, memory.data());
  if (attributes.type == cudaMemoryTypeManaged)
    return NotExportable(description_, "managed memory (cudaMallocManaged)");
  if (attributes.type != cudaMemoryTypeDevice) return NotExportable(description_, "host memory");
  if (attributes.device != description_.ordinal) {
    return NotExportable(description_, fmt::format("memory of device {}", attributes.device));
  }
  ASSIGN_OR_RETURN(const bool can_export, CanExport(memory.data(), description_));
  if (can_export) return OkStatus();
  return NotExportable(
      description_,
      "memory of a stream-ordered pool (cudaMallocAsync) or of virtual memory management (PyTorch: set "
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False)");
}

Result<std::unique_ptr<DeviceBuffer>> CudaDevice::OpenMemory(const MemoryHandle& handle, std::int64_t bytes) {
  return opened_.Open(handle, bytes);
}

Result<std::vector<DeviceDescription>> DescribeCudaDevices() {
  int count = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount"));
  std::vector<DeviceDescription> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
    devices.push_back(Describe(ordinal, properties));
  }
  return devices;
}

}  // namespace bascule
