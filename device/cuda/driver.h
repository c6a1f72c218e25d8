// The few questions that only CUDA's driver library answers. Its functions are found through the runtime: linking
// libcuda would keep the module from loading where no driver is.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"

namespace bascule {

struct AllocationRange {
  const std::byte* base = nullptr;
  std::int64_t bytes = 0;
};

// The allocation that `address` lies in. Errors of the device.
Result<AllocationRange> AllocationOf(const void* address, const DeviceDescription& device);

// Whether anybody in this process has set up the device with this ordinal. True where the driver does not tell.
bool IsSetUp(int ordinal);

// Whether the allocator that `address` comes from can give IPC handles.
Result<bool> CanExport(const void* address, const DeviceDescription& device);

}  // namespace bascule
