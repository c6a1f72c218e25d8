#include "device/cuda/opened_memory.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <limits>

#include "base/log.h"
#include "device/cuda/driver.h"
#include "device/cuda/error.h"
#include "device/cuda/event.h"

namespace bascule {

class OpenedMemory::View final : public DeviceBuffer {
 public:
  View(OpenedMemory& owner, const MemoryHandle& handle, std::span<std::byte> bytes)
      : owner_(owner), handle_(handle), bytes_(bytes) {}
  ~View() override { owner_.Release(handle_); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  std::span<std::byte> bytes() override { return bytes_; }
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  OpenedMemory& owner_;
  const MemoryHandle handle_;
  const std::span<std::byte> bytes_;
};

Result<std::unique_ptr<DeviceBuffer>> OpenedMemory::Open(const MemoryHandle& handle, std::int64_t bytes) {
  USE_DEVICE(device_);
  const MutexLock lock(mu_);
  ASSIGN_OR_RETURN(Opened* const opened, Find(handle));
  // A peer's word: reading past the end would cost this process its device.
  if (bytes < 0 || bytes > opened->bytes) {
    const std::int64_t there = opened->bytes;
    CloseUnused(handle);
    return Status::InvalidArgument("bad_memory_handle", fmt::format("bytes={} of an allocation of {}", bytes, there));
  }
  ++opened->uses;
  return std::unique_ptr<DeviceBuffer>(
      std::make_unique<View>(*this, handle, std::span(opened->base, static_cast<std::size_t>(bytes))));
}

// To the end of its allocation. CUDA promises an answer of what the process has allocated itself. Where a driver has
// none of what it maps for another process, the word of that process has to do, which is one of the same user.
Result<std::int64_t> OpenedMemory::BytesFrom(const std::byte* base) const {
  const Result<AllocationRange> range = AllocationOf(base, device_);
  if (range.ok()) return range->bytes - (base - range->base);
  if (range.status().reason() != "device_error") return range.status();
  LogWarn("unknown_range", "what=\"the size of another process's allocation is not known, it is believed\" why=\"{}\"",
          range.status().ToString());
  return std::numeric_limits<std::int64_t>::max();
}

Result<OpenedMemory::Opened*> OpenedMemory::Find(const MemoryHandle& handle) {
  const auto known = opened_.find(handle);
  if (known != opened_.end()) return &known->second;
  void* base = nullptr;
  RETURN_IF_ERROR(
      OpenStatus(cudaIpcOpenMemHandle(&base, std::bit_cast<cudaIpcMemHandle_t>(handle), cudaIpcMemLazyEnablePeerAccess),
                 "cudaIpcOpenMemHandle", device_));
  Opened& opened = opened_[handle];
  opened.base = static_cast<std::byte*>(base);
  const Result<std::int64_t> bytes = BytesFrom(opened.base);
  if (!bytes.ok()) {
    CloseUnused(handle);
    return bytes.status();
  }
  opened.bytes = *bytes;
  return &opened;
}

void OpenedMemory::Release(const MemoryHandle& handle) {
  const UseDevice use(device_.ordinal);
  const MutexLock lock(mu_);
  --opened_.at(handle).uses;
  CloseUnused(handle);
}

void OpenedMemory::CloseUnused(const MemoryHandle& handle) {
  const auto known = opened_.find(handle);
  if (known->second.uses > 0) return;
  static_cast<void>(CudaStatus(cudaIpcCloseMemHandle(known->second.base), "cudaIpcCloseMemHandle"));
  opened_.erase(known);
}

}  // namespace bascule
