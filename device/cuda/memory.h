// Memory of one CUDA device, and host memory that it can reach.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>

#include "base/mutex.h"
#include "device/device.h"

namespace bascule {

// `device` outlives both, and every buffer of theirs.
class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(const DeviceDescription& device) : device_(device) {}
  // Rounded up to whole pages of the device, which are what an IPC handle opens: a neighbour never lies in the same
  // one.
  Result<std::unique_ptr<DeviceBuffer>> Allocate(std::size_t size) override EXCLUDES(mu_);
  std::string_view name() const override { return "cuda"; }

 private:
  // Zeroes on a stream of its own and waits, with a deadline. `enqueued`: the stream may write there still after an
  // error.
  Status Clear(std::span<std::byte> bytes, bool& enqueued) EXCLUDES(mu_);

  const DeviceDescription& device_;
  Mutex mu_;
  std::unique_ptr<DeviceStream> clearing_ GUARDED_BY(mu_);  // made when first needed
};

class CudaPinnedMemory final : public DeviceMemory {
 public:
  explicit CudaPinnedMemory(const DeviceDescription& device) : device_(device) {}
  Result<std::unique_ptr<DeviceBuffer>> Allocate(std::size_t size) override;
  std::string_view name() const override { return "cuda_pinned"; }

 private:
  const DeviceDescription& device_;
};

}  // namespace bascule
