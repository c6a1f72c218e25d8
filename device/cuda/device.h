// One CUDA device, in its primary context, which it shares with the other libraries of the process.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "device/cuda/memory.h"
#include "device/cuda/opened_memory.h"
#include "device/device.h"

namespace bascule {

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const DeviceDescription& description)
      : description_(description), memory_(description_), pinned_memory_(description_), opened_(description_) {}

  const DeviceDescription& description() const override { return description_; }
  DeviceMemory& memory() override { return memory_; }
  DeviceMemory& pinned_memory() override { return pinned_memory_; }
  Result<std::unique_ptr<DeviceStream>> MakeStream(StreamPriority priority) override;
  Result<std::unique_ptr<DeviceEvent>> MakeEvent() override;
  Result<SharedEvent> MakeSharedEvent() override;
  Result<std::unique_ptr<DeviceEvent>> OpenEvent(const EventHandle& handle) override;
  std::unique_ptr<DeviceEvent> Borrow(void* native_event) override;
  Status CheckReachable(std::span<const std::byte> memory) override;
  Result<ExportedMemory> Export(std::span<const std::byte> memory) override;
  Result<std::unique_ptr<DeviceBuffer>> OpenMemory(const MemoryHandle& handle, std::int64_t bytes) override;

 private:
  Status CheckExportable(std::span<const std::byte> memory) const;

  const DeviceDescription description_;
  CudaMemory memory_;
  CudaPinnedMemory pinned_memory_;
  OpenedMemory opened_;
};

// The devices of this process, by ordinal. Unavailable "no_cuda_device"
Result<std::vector<DeviceDescription>> DescribeCudaDevices();

}  // namespace bascule
