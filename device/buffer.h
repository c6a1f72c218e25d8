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

  // From now on nobody changes a byte, as long as anybody has the memory: it is frozen before it is shared. Where
  // memory is never shared nothing happens.
  //
  // ResourceExhausted "device_memory"
  virtual Status Freeze() { return OkStatus(); }
  // False once it is frozen, and of memory that is somebody else's.
  virtual bool writable() const { return true; }
  // Of frozen memory: a descriptor that other processes map, read-only. -1 where they cannot.
  virtual int shared_fd() const { return -1; }
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
