#include "engine_side/staging.h"

#include <array>

#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr std::array<std::byte, 8> kZeroElement{};

}  // namespace

void Staging::FillPadding() const {
  const Layout& layout = slots_.layout();
  for (std::size_t r = 0; r < layout.ranks.size(); ++r) {
    const RankLayout& rank = layout.ranks[r];
    for (const MapRow& row : rank.rows) {
      if (row.logical != kFill) continue;
      const LocalTensor& local = rank.tensors[static_cast<std::size_t>(row.local)];
      const auto element = std::span(kZeroElement).first(static_cast<std::size_t>(ItemBytes(local.dtype)));
      FillBoxOnHost(ShapeOf(row.local_box), element, slots_.ShadowTensor(slot_, static_cast<int>(r), row.local).data(),
                    PlaceIn(row.local_box, local.shape));
    }
  }
}

TensorDigest Staging::PlaceAndDigest(const Slice& slice, int engine_rank, const BoxView& from) const {
  const RankLayout& rank = slots_.layout().ranks[static_cast<std::size_t>(engine_rank)];
  const LocalTensor& local = rank.tensors[static_cast<std::size_t>(slice.engine_tensor)];
  const auto tensor = static_cast<std::size_t>(slice.tensor);
  return CopyAndDigestBoxOnHost(plan_.keys[tensor], ShapeOf(slice.engine_box), ItemBytes(local.dtype), from.base,
                                from.place, slots_.ShadowTensor(slot_, engine_rank, slice.engine_tensor).data(),
                                PlaceIn(slice.engine_box, local.shape),
                                PlaceIn(slice.logical_box, plan_.plan.tensors[tensor].shape));
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
