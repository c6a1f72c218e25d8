#include "device/cuda/memory.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/mutex.h"
#include "device/cuda/error.h"
#include "device/cuda/event.h"
#include "device/cuda/stream.h"

namespace bascule {
namespace {

constexpr std::size_t kDevicePageBytes = std::size_t{2} << 20;
constexpr Duration kClearPatience = std::chrono::seconds(60);

template <cudaError_t (*kFree)(void*)>
class CudaBuffer final : public DeviceBuffer {
 public:
  CudaBuffer(void* address, std::size_t size, int ordinal)
      : bytes_(static_cast<std::byte*>(address), size), ordinal_(ordinal) {}
  ~CudaBuffer() override {
    const UseDevice use(ordinal_);
    if (bytes_.data() != nullptr) static_cast<void>(CudaStatus(kFree(bytes_.data()), "cudaFree"));
  }
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;
  std::span<std::byte> bytes() override { return bytes_; }
  std::span<const std::byte> bytes() const override { return bytes_; }

 private:
  const std::span<std::byte> bytes_;
  const int ordinal_;
};

// What the device may still write to.
void KeepForEver(std::unique_ptr<DeviceBuffer> buffer) {
  static auto* const mu = new Mutex;
  static auto* const kept = new std::vector<std::unique_ptr<DeviceBuffer>>;
  const MutexLock lock(*mu);
  kept->push_back(std::move(buffer));
}

Status WithBytes(const Status& status, std::size_t size) {
  return status.ok() ? status : status.WithContext(fmt::format("bytes={}", size));
}

}  // namespace

Result<std::unique_ptr<DeviceBuffer>> CudaMemory::Allocate(std::size_t size) {
  USE_DEVICE(device_);
  const std::size_t pages = size / kDevicePageBytes + (size % kDevicePageBytes != 0 ? 1 : 0);
  const std::optional<std::size_t> rounded = CheckedMul(pages, kDevicePageBytes);
  if (!rounded) return Status::ResourceExhausted("device_memory", fmt::format("bytes={}", size));
  void* address = nullptr;
  if (size > 0) RETURN_IF_ERROR(WithBytes(CudaStatus(cudaMalloc(&address, *rounded), "cudaMalloc", device_), size));
  std::unique_ptr<DeviceBuffer> buffer = std::make_unique<CudaBuffer<cudaFree>>(address, size, device_.ordinal);
  bool enqueued = false;
  const Status cleared = Clear(buffer->bytes(), enqueued);
  if (cleared.ok()) return buffer;
  if (enqueued) KeepForEver(std::move(buffer));
  return cleared;
}

Status CudaMemory::Clear(std::span<std::byte> bytes, bool& enqueued) {
  if (bytes.empty()) return OkStatus();
  ASSIGN_OR_RETURN(const std::unique_ptr<CudaEvent> done, MakeCudaEvent(device_));
  {
    const MutexLock lock(mu_);
    if (clearing_ == nullptr) {
      ASSIGN_OR_RETURN(clearing_, MakeCudaStream(StreamPriority::kNormal, device_));
    }
    RETURN_IF_ERROR(clearing_->Fill(bytes, std::byte{0}));
    enqueued = true;
    RETURN_IF_ERROR(clearing_->Record(*done));
  }
  return AwaitEvent(*done, Deadline::After(Clock::Real(), kClearPatience), Clock::Real());
}

Result<std::unique_ptr<DeviceBuffer>> CudaPinnedMemory::Allocate(std::size_t size) {
  USE_DEVICE(device_);
  void* address = nullptr;
  if (size > 0) {
    RETURN_IF_ERROR(
        WithBytes(CudaStatus(cudaHostAlloc(&address, size, cudaHostAllocPortable), "cudaHostAlloc", device_), size));
    std::memset(address, 0, size);
  }
  return std::unique_ptr<DeviceBuffer>(std::make_unique<CudaBuffer<cudaFreeHost>>(address, size, device_.ordinal));
}

}  // namespace bascule
