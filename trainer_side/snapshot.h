// One copy of what the trainer ranks of this process hold, in the wire types: the trainer goes on while it is sent, and
// goes on being sent from it. The memory is taken once and used again by every publish. What lies on a device is copied
// and converted there, into memory of the device or straight into pinned host memory.
//
// Thread-safety: thread-compatible; Base is thread-safe while nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/send/weight_source.h"
#include "device/buffer.h"

namespace bascule {

// Where a snapshot of `source` goes: to its device's memory, or to the host's, pinned where a device writes to it.
DeviceMemory& MemoryForSnapshot(const WeightSource& source, bool on_device);

class WeightSnapshot final : public WeightSource {
 public:
  // Room for the local tensors that have a part of a tensor in `wire`; others are not copied. `source` is borrowed.
  //
  // ResourceExhausted "device_memory"
  static Result<std::unique_ptr<WeightSnapshot>> Create(const WeightSource& source, const std::vector<TensorSpec>& wire,
                                                        DeviceMemory& memory);

  const std::vector<TensorSpec>& wire() const { return wire_; }
  // Reads all of the source, one thread per trainer rank, or by one launch on its device.
  //
  // DeadlineExceeded "device_deadline"; errors of the device
  Status Copy(Deadline deadline);

  // As the source's, dense and in the wire types. A local tensor of several logical tensors (a fused one) whose wire
  // types differ keeps its own.
  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int sender_rank, int tensor) const override;
  WeightDevice* device() const override { return is_on_device_ ? source_.device() : nullptr; }
  std::unique_ptr<BoxReader> Read(std::vector<SourceBox> boxes) const override;

 private:
  static constexpr std::int64_t kNotHeld = -1;

  WeightSnapshot(const WeightSource& source, std::vector<TensorSpec> wire);
  // Gives every held tensor its offset; returns the bytes of the rank.
  std::int64_t Place(std::size_t rank);
  // What each local tensor is copied as; nothing where nobody takes it.
  std::vector<std::optional<DType>> TypesOf(const RankLayout& rank) const;
  void CopyRank(std::size_t rank);
  void CopyTensor(std::size_t rank, std::size_t tensor);
  Status CopyOnDevice(Deadline deadline);
  std::byte* Target(std::size_t rank, std::size_t tensor) const;

  const WeightSource& source_;
  bool is_on_device_ = false;
  const std::vector<TensorSpec> wire_;
  Layout layout_;
  std::vector<std::vector<std::int64_t>> offset_;  // per rank, per local tensor
  std::vector<std::unique_ptr<DeviceBuffer>> memory_;
};

}  // namespace bascule
