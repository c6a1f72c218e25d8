// One copy of what the trainer ranks of this process hold, in the wire types: the trainer goes on while it is sent, and
// goes on being sent from it. The memory is taken once and used again by every publish.
//
// Thread-safety: thread-compatible; Base is thread-safe while nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/send/weight_source.h"
#include "device/buffer.h"

namespace bascule {

class HostSnapshot final : public WeightSource {
 public:
  // Room for the local tensors that have a part of a tensor in `wire`; others are not copied. `source` is borrowed.
  //
  // ResourceExhausted "device_memory"
  static Result<std::unique_ptr<HostSnapshot>> Create(const WeightSource& source, const std::vector<TensorSpec>& wire,
                                                      DeviceMemory& memory);

  const std::vector<TensorSpec>& wire() const { return wire_; }
  // Reads all of the source, one thread per trainer rank.
  void Copy();

  // As the source's, dense and in the wire types. A local tensor of several logical tensors (a fused one) whose wire
  // types differ keeps its own.
  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int sender_rank, int tensor) const override;

 private:
  static constexpr std::int64_t kNotHeld = -1;

  HostSnapshot(const WeightSource& source, std::vector<TensorSpec> wire);
  // Gives every held tensor its offset; returns the bytes of the rank.
  std::int64_t Place(std::size_t rank);
  // What each local tensor is copied as; nothing where nobody takes it.
  std::vector<std::optional<DType>> TypesOf(const RankLayout& rank) const;
  void CopyRank(std::size_t rank);
  void CopyTensor(std::size_t rank, std::size_t tensor);

  const WeightSource& source_;
  const std::vector<TensorSpec> wire_;
  Layout layout_;
  std::vector<std::vector<std::int64_t>> offset_;  // per rank, per local tensor
  std::vector<std::unique_ptr<DeviceBuffer>> memory_;
};

}  // namespace bascule
