// Memory of one window of full tensors, and how it fills: every slice is placed and digested where it lies, and
// compared with the digest that its holder made of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "bridge/bucket/bucket_format.h"
#include "bridge/transport/transport.h"
#include "device/buffer.h"
#include "trainer_side/gather/gather_plan.h"

namespace bascule {

// Thread-safety: thread-compatible; read-only once complete.
class FullWindow {
 public:
  // Room for any window of `plan`, which is borrowed.
  FullWindow(const GatherPlan& plan, std::unique_ptr<DeviceBuffer> memory) : plan_(plan), memory_(std::move(memory)) {}

  // Holds this window from here on, as soon as it is complete.
  void Reset(std::int32_t window) { window_ = window; }
  std::int32_t window() const { return window_; }
  // Tensor of the plan, in this window: row-major in its wire type.
  const std::byte* Tensor(std::int32_t tensor) const { return memory_->bytes().data() + plan_.OffsetOf(tensor); }
  std::byte* Tensor(std::int32_t tensor) { return memory_->bytes().data() + plan_.OffsetOf(tensor); }

 private:
  const GatherPlan& plan_;
  const std::unique_ptr<DeviceBuffer> memory_;
  std::int32_t window_ = -1;
};

// Thread-safety: confined to one thread.
class WindowAssembly {
 public:
  // Borrows all. `keys`: per tensor of the plan.
  WindowAssembly(const GatherPlan& plan, const std::vector<DigestKey>& keys, SessionId session, FullWindow& target);

  // Places what `frame`, which came on `route`, brings; what to acknowledge. A bucket may come damaged, once.
  //
  // DataLoss "bucket_damaged"       a second time, or a header that cannot be read
  // DataLoss "bucket_outside_plan"  not of this window, not of this route, or here before
  Result<BucketAck> Take(std::int32_t route, std::span<const std::byte> frame);
  // Of the tensors of the window, once every bucket is here: the sums of what their holders have digested.
  const std::vector<TensorDigest>& totals() const { return totals_; }

 private:
  Status CheckBucket(std::int32_t route, const BucketHeader& header) const;
  Status Place(const BucketHeader& header, std::span<const std::byte> frame);

  const GatherPlan& plan_;
  const GatherWindow& window_;
  const std::vector<DigestKey>& keys_;
  const SessionId session_;
  FullWindow& target_;
  std::vector<bool> arrived_;  // per bucket of the window
  std::vector<bool> damaged_;
  std::vector<TensorDigest> totals_;
};

}  // namespace bascule
