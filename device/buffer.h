// Owned memory of the host or of one device: what slots, staging and arenas need of either.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/status.h"

namespace bascule {

// Page-aligned bytes, zero at first and touched, so that no later write meets a page fault. Memory of a device
// (device.h) has addresses that only the device may follow.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual std::span<std::byte> bytes() = 0;
  virtual std::span<const std::byte> bytes() const = 0;
};

// Where buffers come from. Thread-safe.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // ResourceExhausted "device_memory"  with the bytes that were asked for
  virtual Result<std::unique_ptr<DeviceBuffer>> Allocate(std::size_t size) = 0;
  virtual std::string_view name() const = 0;  // "host", "cuda", "cuda_pinned"
};

}  // namespace bascule
