#include "engine_side/derived_tensors.h"

#include "bridge/manifest/manifest.h"

namespace bascule {

Result<DerivedTensors> DerivedTensors::Create(const Layout& engine_layout,
                                              const std::vector<std::vector<LocalTensor>>& tensors) {
  Layout slot_layout = engine_layout;
  if (!tensors.empty() && tensors.size() != slot_layout.ranks.size()) {
    return Status::InvalidArgument("bad_layout", fmt::format("derived tensors of {} ranks, the engine has {}",
                                                             tensors.size(), slot_layout.ranks.size()));
  }
  std::vector<std::size_t> first;
  for (std::size_t r = 0; r < slot_layout.ranks.size(); ++r) {
    std::vector<LocalTensor>& all = slot_layout.ranks[r].tensors;
    first.push_back(all.size());
    if (!tensors.empty()) all.insert(all.end(), tensors[r].begin(), tensors[r].end());
  }
  RETURN_IF_ERROR(CheckLayout(slot_layout).WithContext("with derived tensors"));
  return DerivedTensors(std::move(slot_layout), std::move(first));
}

template <typename Visit>
void DerivedTensors::ForEach(const Visit& visit) const {
  for (std::size_t r = 0; r < first_.size(); ++r) {
    const std::vector<LocalTensor>& tensors = slot_layout_.ranks[r].tensors;
    for (std::size_t t = first_[r]; t < tensors.size(); ++t) {
      const Box whole = Box::Whole(tensors[t].shape);
      const BoxPlace place = PlaceIn(whole, tensors[t].shape);
      visit(SlotBox{.engine_rank = static_cast<int>(r),
                    .shape = ShapeOf(whole),
                    .item_bytes = ItemBytes(tensors[t].dtype),
                    .place = place,
                    .logical = place,
                    .key = KeyOf({tensors[t].name, tensors[t].dtype, tensors[t].shape})},
            static_cast<int>(t));
    }
  }
}

Result<DigestsByRank> DerivedTensors::Make(EngineHooks& hooks, const WeightVersion& version, WeightSlots& slots,
                                           int slot, Deadline deadline) const {
  const auto derived = [&](int engine_rank, int index) {
    const int tensor = static_cast<int>(first_[static_cast<std::size_t>(engine_rank)]) + index;
    return slots.ShadowTensor(slot, engine_rank, tensor);
  };
  std::vector<SlotTarget> targets;
  ForEach([&](const SlotBox& box, int tensor) {
    targets.push_back({box, slots.ShadowTensor(slot, box.engine_rank, tensor).data()});
  });
  RETURN_IF_ERROR(slots.work().Zero(targets));
  const TensorMemory memory = [&](int engine_rank, int tensor) -> std::span<const std::byte> {
    return slots.ShadowTensor(slot, engine_rank, tensor);
  };
  const Status made = hooks.Finalize({.version = version, .tensor = memory, .derived = derived}, deadline);
  if (!made.ok()) return Status::Aborted("finalize_failed", made.ToString());
  return Digest(memory, slots.work());
}

Status DerivedTensors::Check(const TensorMemory& memory, const DigestsByRank& digests, SlotWork& work) const {
  ASSIGN_OR_RETURN(const DigestsByRank now, Digest(memory, work));
  for (std::size_t r = 0; r < digests.size(); ++r) {
    for (std::size_t t = 0; t < digests[r].size(); ++t) {
      if (now[r][t] == digests[r][t]) continue;
      return Status::DataLoss("digest_mismatch", fmt::format("derived tensor {} on engine rank {}: memory={} made={}",
                                                             slot_layout_.ranks[r].tensors[first_[r] + t].name, r,
                                                             now[r][t].ToHex(), digests[r][t].ToHex()));
    }
  }
  return OkStatus();
}

Result<DigestsByRank> DerivedTensors::Digest(const TensorMemory& memory, SlotWork& work) const {
  std::vector<SlotSource> boxes;
  ForEach([&](const SlotBox& box, int tensor) { boxes.push_back({box, memory(box.engine_rank, tensor).data()}); });
  ASSIGN_OR_RETURN(const std::vector<TensorDigest> found, work.Digest(boxes));
  DigestsByRank digests(first_.size());
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    digests[static_cast<std::size_t>(boxes[i].box.engine_rank)].push_back(found[i]);
  }
  return digests;
}

}  // namespace bascule
