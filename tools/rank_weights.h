// The memory of one trainer rank: what a layout gives to it, read from a checkpoint, of which it reads nothing else.
//
// Thread-safety: thread-safe once read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/send/weight_source.h"
#include "device/buffer.h"

namespace bascule {

class RankWeights final : public WeightSource {
 public:
  // `part` has one rank, and tensors of `stored` in the types that those have there.
  //
  // ResourceExhausted "device_memory"; FailedPrecondition "not_covered"  `stored` does not have it all; as
  // BoxReader::Next
  static Result<std::unique_ptr<RankWeights>> Read(const WeightSource& stored, Layout part);

  const Layout& layout() const override { return part_; }
  const std::byte* Base(int /*sender_rank*/, int tensor) const override { return BaseOf(tensor); }

 private:
  explicit RankWeights(Layout part) : part_(std::move(part)) {}
  Status Allocate();
  Status Fill(const WeightSource& stored);
  std::byte* BaseOf(int tensor) const { return memory_->bytes().data() + offset_[static_cast<std::size_t>(tensor)]; }

  const Layout part_;
  std::unique_ptr<DeviceBuffer> memory_;
  std::vector<std::int64_t> offset_;  // per local tensor
};

}  // namespace bascule
