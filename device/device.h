// One accelerator of this machine: its memory, its streams, and what it shares with other processes on the same device.
// A device is known by its UUID. Its ordinal is what this process happens to call it, and another process calls it
// something else.
//
// Errors of the device, which any function that reaches it may return; the message has the device, the call, and the
// driver's own name and text:
//   ResourceExhausted "device_memory"   no room for what was asked
//   Unavailable "no_cuda_device"        the device or its driver is not there (any more)
//   Internal "device_lost"              work failed on the device; this process cannot use it again
//   Internal "capture_broken"           what was captured cannot be; nothing of it has run
//   Internal "device_error"             anything else
//
// Thread-safety: thread-safe; any thread may call, whatever device it used last.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "device/buffer.h"
#include "device/stream.h"

namespace bascule {

struct DeviceUuid {
  std::array<std::uint8_t, 16> bytes{};
  std::string ToString() const;  // "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", as nvidia-smi prints it
  friend bool operator==(const DeviceUuid&, const DeviceUuid&) = default;
};

// InvalidArgument "bad_device_uuid"
Result<DeviceUuid> ParseDeviceUuid(std::string_view text);

struct DeviceDescription {
  int ordinal = 0;
  DeviceUuid uuid;
  std::string name;  // "NVIDIA H200"
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  std::int64_t memory_bytes = 0;
};

// A device's name for memory or an event of its that another process may open. Opaque; sent as it is.
struct MemoryHandle {
  std::array<std::byte, 64> bytes{};
  friend bool operator==(const MemoryHandle&, const MemoryHandle&) = default;
  friend auto operator<=>(const MemoryHandle&, const MemoryHandle&) = default;
};
struct EventHandle {
  std::array<std::byte, 64> bytes{};
};

struct SharedEvent {
  std::unique_ptr<DeviceEvent> event;
  EventHandle handle;
};

// Memory inside an allocation that can be opened: the handle names the whole allocation.
struct ExportedMemory {
  MemoryHandle handle;
  std::int64_t offset = 0;  // of the memory in the allocation
  std::int64_t allocation_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceDescription& description() const = 0;

  // Memory of the device, which the host cannot touch. Each buffer is an allocation of its own that can be exported:
  // make one for each purpose, and one handle covers it. Allocating waits for the device.
  virtual DeviceMemory& memory() = 0;
  // Host memory that the device reads and writes directly.
  virtual DeviceMemory& pinned_memory() = 0;

  virtual Result<std::unique_ptr<DeviceStream>> MakeStream(StreamPriority priority) = 0;
  virtual Result<std::unique_ptr<DeviceEvent>> MakeEvent() = 0;

  // An event that other processes may open, until it is destroyed; and one that another process made on this device.
  virtual Result<SharedEvent> MakeSharedEvent() = 0;
  // Unavailable "peer_lost"  its maker has destroyed it; FailedPrecondition "same_process"
  virtual Result<std::unique_ptr<DeviceEvent>> OpenEvent(const EventHandle& handle) = 0;

  // An event that the caller made with the device's own library (cudaEvent_t), and keeps longer than what this gives.
  virtual std::unique_ptr<DeviceEvent> Borrow(void* native_event) = 0;
  // Kernels of this device may follow the addresses of `memory`, as far as its first and last byte tell.
  //
  // InvalidArgument "not_on_device"  it is another device's, or host memory that is not pinned
  virtual Status CheckReachable(std::span<const std::byte> memory) = 0;

  // Names `memory` for other processes. Its owner keeps it until they have closed it.
  //
  // InvalidArgument "not_exportable"  memory of another device or of the host, or of an allocator that cannot export
  //   (stream-ordered pools, managed memory, virtual memory such as PyTorch's expandable segments): the message names
  //   it
  virtual Result<ExportedMemory> Export(std::span<const std::byte> memory) = 0;
  // The first `bytes` of the allocation that another process exported as `handle`, which it made on this device. Opened
  // again while it is open, the same memory is shared: a process opens an allocation once, and closes it once.
  //
  // Unavailable "peer_lost"  its maker has freed it; FailedPrecondition "same_process"
  // InvalidArgument "bad_memory_handle"  the allocation is smaller
  virtual Result<std::unique_ptr<DeviceBuffer>> OpenMemory(const MemoryHandle& handle, std::int64_t bytes) = 0;
};

}  // namespace bascule
