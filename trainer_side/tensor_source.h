// What a trainer holds: for every trainer rank of this process, shards of logical tensors, by address. The memory stays
// the trainer's; it is read between Publish and `packed` only.
//
//   TensorSource source(/*trainer_ranks=*/2);
//   source.Add(0, {.tensor = {"model.norm.weight", DType::kF32, {64}}, .box = Box::Whole({64}), .data = p});
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/send/weight_source.h"

namespace bascule {

// `box` of logical `tensor` lies at `data`, with `stride` in elements (empty: dense row-major of box.extent).
struct ShardView {
  TensorSpec tensor;  // canonical name, dtype as held here, global shape
  Box box;
  const void* data = nullptr;
  Dims stride;
};

class TensorSource final : public WeightSource {
 public:
  explicit TensorSource(int trainer_ranks);
  // As above, but the addresses of Add are those of `backing`, which reads what lies there; borrowed.
  TensorSource(int trainer_ranks, const WeightSource& backing);
  // A shard without elements may have null data. A refused shard leaves the source as it was.
  //
  // InvalidArgument "bad_shard"  rank, box outside the tensor, null data, another shape or dtype than before for the
  // name
  Status Add(int trainer_rank, const ShardView& shard);

  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int sender_rank, int tensor) const override;
  std::unique_ptr<BoxReader> Read(std::vector<SourceBox> boxes) const override;
  void Release(std::span<const std::byte> memory) const override;

 private:
  const WeightSource* backing_ = nullptr;
  Layout layout_;
  std::map<std::string, std::size_t> logical_of_;    // name -> index into layout_.tensors
  std::vector<std::vector<const std::byte*>> data_;  // per rank, per local tensor
};

}  // namespace bascule
