// Allocations of other processes that this one has open. Each is opened once, however many routes use it, and closed
// when the last of them is done: not every driver lets a process open an allocation twice.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "device/device.h"

namespace bascule {

class OpenedMemory {
 public:
  // `device` outlives this, and this outlives every buffer.
  explicit OpenedMemory(const DeviceDescription& device) : device_(device) {}
  // See Device::OpenMemory.
  Result<std::unique_ptr<DeviceBuffer>> Open(const MemoryHandle& handle, std::int64_t bytes) EXCLUDES(mu_);

 private:
  class View;
  struct Opened {
    std::byte* base = nullptr;
    std::int64_t bytes = 0;
    int uses = 0;
  };
  Result<Opened*> Find(const MemoryHandle& handle) REQUIRES(mu_);
  Result<std::int64_t> BytesFrom(const std::byte* base) const;
  void Release(const MemoryHandle& handle) EXCLUDES(mu_);
  void CloseUnused(const MemoryHandle& handle) REQUIRES(mu_);

  const DeviceDescription& device_;
  Mutex mu_;
  std::map<MemoryHandle, Opened> opened_ GUARDED_BY(mu_);
};

}  // namespace bascule
