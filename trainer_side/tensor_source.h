// What a trainer holds: for every trainer rank of this process, shards of logical tensors, by address. The memory stays
// the trainer's; it is read between Publish and `packed` only.
//
//   TensorSource source(/*trainer_ranks=*/2);
//   source.Add(0, {.tensor = {"model.norm.weight", DType::kF32, {64}}, .box = Box::Whole({64}), .data = p});
//
// Or as a trainer layout (trainer_side/layouts) has it: the framework's own tensors, with their rows.
//
//   TensorSource source(/*trainer_ranks=*/2, layout.tensors);
//   source.AddRank(0, layout.ranks[0], addresses);
//
// The addresses are of host memory, or all of one device's:
//
//   source.LieOn(std::make_shared<WeightDevice>(device, kernels));
//
// Then a device packs, and what has to be done before it reads is said with each Publish (PublishRequest::ready).
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/send/weight_device.h"
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
  // With the logical tensors that the rows of AddLocal name by their index.
  TensorSource(int trainer_ranks, std::vector<TensorSpec> tensors);

  // A shard without elements may have null data. A refused shard leaves the source as it was.
  //
  // InvalidArgument "bad_shard"  rank, box outside the tensor, null data, another shape or dtype than before for the
  // name
  Status Add(int trainer_rank, const ShardView& shard);
  // Local tensor `local`, under its own name, and its rows; MapRow::local is not looked at. Element 0 lies at `data`,
  // the others by LocalTensor::stride. What no row covers (padding) is not sent; without elements in rows `data` may be
  // null. A refused tensor leaves the source as it was.
  //
  // InvalidArgument "bad_shard"   no such rank, null data
  // InvalidArgument "bad_layout"  as CheckRank
  Status AddLocal(int trainer_rank, const LocalTensor& local, std::vector<MapRow> rows, const void* data);
  // All local tensors of a rank, with an address for each.
  //
  // InvalidArgument "bad_shard"  another number of addresses; else as AddLocal
  Status AddRank(int trainer_rank, const RankLayout& rank, std::span<const void* const> data);
  // Every address, of tensors there are and to come, is one of `device`'s memory, or of pinned host memory.
  void LieOn(std::shared_ptr<WeightDevice> device) { device_ = std::move(device); }
  // InvalidArgument "not_on_device"  a tensor, by name, lies where that device's kernels cannot follow; OK on the host
  Status CheckReachable() const;
  // `owner` lives as long as the source: for memory that would otherwise go with its last owner elsewhere.
  void Keep(std::shared_ptr<const void> owner) { kept_.push_back(std::move(owner)); }

  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int sender_rank, int tensor) const override;
  WeightDevice* device() const override { return device_.get(); }
  std::unique_ptr<BoxReader> Read(std::vector<SourceBox> boxes) const override;
  void Release(std::span<const std::byte> memory) const override;

 private:
  Status CheckTrainerRank(int trainer_rank, std::string_view name) const;

  const WeightSource* backing_ = nullptr;
  std::shared_ptr<WeightDevice> device_;  // shared with other sources of this process; null: host memory
  Layout layout_;
  std::map<std::string, std::size_t> logical_of_;    // name -> index into layout_.tensors
  std::vector<std::vector<const std::byte*>> data_;  // per rank, per local tensor
  std::vector<std::shared_ptr<const void>> kept_;    // shared: the trainer goes on using what it owns
};

}  // namespace bascule
