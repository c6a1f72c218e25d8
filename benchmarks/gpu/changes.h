// Changes of one element in so many, spread evenly at random over a slot: what a delta scatters.
//
// Thread-safety: thread-compatible.
#pragma once

#include <memory>

#include "benchmarks/gpu/gpu_run.h"

namespace bascule {

class SlotChanges {
 public:
  // For `slot`, memory of bf16, at `density` (0 to 1).
  static Result<SlotChanges> Make(const GpuRun& run, std::span<std::byte> slot, double density);
  const ChangeBatch& batch() const { return batch_; }
  std::int64_t count() const { return batch_.changes; }

 private:
  DeviceTable table_;
  std::unique_ptr<DeviceBuffer> offsets_;  // first_change, and first_item behind it
  std::unique_ptr<DeviceBuffer> positions_;
  std::unique_ptr<DeviceBuffer> items_;
  std::unique_ptr<DeviceBuffer> replaced_;
  std::unique_ptr<DeviceBuffer> digests_;
  ChangeBatch batch_;
};

}  // namespace bascule
