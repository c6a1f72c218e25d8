#include "engine_side/staging.h"

namespace bascule {

SlotBox BoxOfSlice(const ReceivePlan& plan, const Layout& engine_layout, const Slice& slice, int engine_rank,
                   const Box& logical_box) {
  const auto tensor = static_cast<std::size_t>(slice.tensor);
  const RankLayout& rank = engine_layout.ranks[static_cast<std::size_t>(engine_rank)];
  const LocalTensor& local = rank.tensors[static_cast<std::size_t>(slice.engine_tensor)];
  const Box engine_box = CorrespondingBox(logical_box, slice.logical_box, slice.engine_box);
  return {.engine_rank = engine_rank,
          .shape = ShapeOf(engine_box),
          .item_bytes = ItemBytes(local.dtype),
          .place = PlaceIn(engine_box, local.shape),
          .logical = PlaceIn(logical_box, plan.plan.tensors[tensor].shape),
          .key = plan.keys[tensor]};
}

SlotBox BoxOfPadding(const MapRow& row, const LocalTensor& local, int engine_rank) {
  const BoxPlace place = PlaceIn(row.local_box, local.shape);
  return {.engine_rank = engine_rank,
          .shape = ShapeOf(row.local_box),
          .item_bytes = ItemBytes(local.dtype),
          .place = place,
          .logical = place,
          .key = {}};
}

Status Staging::FillPadding() const {
  std::vector<SlotTarget> padding;
  const Layout& layout = slots_.layout();
  for (std::size_t r = 0; r < layout.ranks.size(); ++r) {
    const int engine_rank = static_cast<int>(r);
    for (const MapRow& row : layout.ranks[r].rows) {
      if (row.logical != kFill) continue;
      const LocalTensor& local = layout.ranks[r].tensors[static_cast<std::size_t>(row.local)];
      padding.push_back(
          {BoxOfPadding(row, local, engine_rank), slots_.ShadowTensor(slot_, engine_rank, row.local).data()});
    }
  }
  return slots_.work().Zero(padding);
}

Result<std::vector<TensorDigest>> Staging::PlaceAndDigest(const Bucket& bucket, std::span<const BoxView> from,
                                                          FrameMemory memory) const {
  return Place(plan_.engine_rank(bucket), bucket.slices, from, memory);
}

Result<std::vector<TensorDigest>> Staging::CarryAndDigest(const CarriedPart& part, const WeightLease& live) const {
  const std::vector<LocalTensor>& tensors = slots_.layout().ranks[static_cast<std::size_t>(part.engine_rank)].tensors;
  std::vector<BoxView> from;
  from.reserve(part.slices.size());
  for (const Slice& slice : part.slices) {
    const Dims& shape = tensors[static_cast<std::size_t>(slice.engine_tensor)].shape;
    from.push_back(
        {live.Tensor(part.engine_rank, slice.engine_tensor).data(), PlaceIn(slice.engine_box, shape), nullptr});
  }
  return Place(part.engine_rank, part.slices, from, slots_.work().OnHost() ? FrameMemory::kHost : FrameMemory::kDevice);
}

Result<std::vector<TensorDigest>> Staging::Place(int engine_rank, std::span<const Slice> slices,
                                                 std::span<const BoxView> from, FrameMemory memory) const {
  std::vector<Placement> boxes;
  boxes.reserve(slices.size());
  for (std::size_t s = 0; s < slices.size(); ++s) {
    const Slice& slice = slices[s];
    boxes.push_back({{BoxOfSlice(plan_, slots_.layout(), slice, engine_rank, slice.logical_box),
                      slots_.ShadowTensor(slot_, engine_rank, slice.engine_tensor).data()},
                     from[s]});
  }
  return slots_.work().PlaceAndDigest(boxes, memory);
}

TensorMemory Staging::memory() const {
  return [&slots = slots_, slot = slot_](int engine_rank, int tensor) -> std::span<const std::byte> {
    return slots.ShadowTensor(slot, engine_rank, tensor);
  };
}

std::vector<std::uint32_t> CoverageLedger::Missing() const {
  std::vector<std::uint32_t> missing;
  for (std::size_t bucket = 0; bucket < arrived_.size(); ++bucket) {
    if (!arrived_[bucket]) missing.push_back(static_cast<std::uint32_t>(bucket));
  }
  return missing;
}

}  // namespace bascule
