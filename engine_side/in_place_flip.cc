#include "engine_side/in_place_flip.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/log.h"

namespace bascule {
namespace {

// Two slots that are never swapped: the first version goes to the first slot, which so is live for good.
constexpr int kLiveSlot = 0;
constexpr int kOtherSlot = 1;
constexpr std::size_t kSampleBytes = 32 << 20;

using PairsByRank = std::vector<std::vector<BlockExchange::Pair>>;

Result<BlockExchange> MakeExchange(const PairsByRank& memory, SlotWork& work, BlockCopier* copier) {
  if (copier != nullptr) return BlockExchange(memory, *copier);
  return work.MakeExchange(memory);
}

// All of one rank's memory, as bytes of nothing in particular.
SlotSource BytesOf(std::span<const std::byte> memory, int engine_rank) {
  const Dims bytes{std::ssize(memory)};
  const BoxPlace place = PlaceIn(Box::Whole(bytes), bytes);
  const SlotBox box{.engine_rank = engine_rank,
                    .shape = ShapeOf(Box::Whole(bytes)),
                    .item_bytes = 1,
                    .place = place,
                    .logical = place,
                    .key = {}};
  return {box, memory.data()};
}

// Both memories are zero, so an exchange of a part changes nothing. One core digests what two exchange: that the proof
// runs on two makes up for the rest of it.
Result<Duration> Estimate(WeightSlots& slots, BlockCopier* copier, Clock& clock) {
  PairsByRank memory;
  std::size_t total = 0, sampled = 0;
  for (int rank = 0; rank < std::ssize(slots.layout().ranks); ++rank) {
    const BlockExchange::Pair all{slots.RankMemory(kLiveSlot, rank), slots.RankMemory(kOtherSlot, rank)};
    total += all.a.size();
    const std::size_t bytes = std::min(all.a.size(), kSampleBytes - sampled);
    memory.push_back({{all.a.first(bytes), all.b.first(bytes)}});
    sampled += bytes;
  }
  if (sampled == 0) return Duration::zero();
  ASSIGN_OR_RETURN(BlockExchange exchange, MakeExchange(memory, slots.work(), copier));
  const TimePoint begin = clock.Now();
  RETURN_IF_ERROR(exchange.Run());
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    const SlotSource bytes = BytesOf(memory[rank].front().a, static_cast<int>(rank));
    RETURN_IF_ERROR(slots.work().Digest(std::span(&bytes, 1)).status());
  }
  const auto ratio = static_cast<double>(total) / static_cast<double>(sampled);
  return std::chrono::duration_cast<Duration>((clock.Now() - begin) * ratio);
}

}  // namespace

Result<std::unique_ptr<InPlaceFlip>> InPlaceFlip::Create(WeightSlots& slots, const ReceivePlan& engine_plan,
                                                         const DerivedTensors& derived, BlockCopier* copier,
                                                         Clock& clock) {
  CHECK(slots.slot_count() == 2);
  ASSIGN_OR_RETURN(const Duration estimated, Estimate(slots, copier, clock));
  return std::unique_ptr<InPlaceFlip>(new InPlaceFlip(slots, engine_plan, derived, copier, estimated));
}

Status InPlaceFlip::Exchange(const HeldDigests& live, const HeldDigests& staged) {
  const Changed changed = ChangedBetween(live, staged);
  ASSIGN_OR_RETURN(BlockExchange exchange, MakeExchange(MemoryOf(changed), slots_.work(), copier_));
  Status why = exchange.Run();
  if (why.ok()) why = Proof(staged, changed);
  if (why.ok()) return OkStatus();
  Status undone = exchange.Undo();
  if (undone.ok()) undone = Proof(live, changed);
  LogError("flip_failed", "in_place why=\"{}\" undone=\"{}\"", why.ToString(), undone.ToString());
  if (undone.ok()) {
    return Status::Aborted("flip_undone", fmt::format("the old version is live still: {}", why.ToString()));
  }
  return Status::DataLoss("live_lost", fmt::format("live memory holds no version: {}; and going back: {}",
                                                   why.ToString(), undone.ToString()));
}

double InPlaceFlip::ShareOf(const HeldDigests& live, const HeldDigests& staged) const {
  const Changed changed = ChangedBetween(live, staged);
  double all = 0, exchanged = 0;
  for (std::size_t r = 0; r < changed.size(); ++r) {
    for (std::size_t t = 0; t < changed[r].size(); ++t) {
      const auto bytes = static_cast<double>(slots_.layout().ranks[r].tensors[t].Bytes());
      all += bytes;
      if (changed[r][t]) exchanged += bytes;
    }
  }
  return all == 0 ? 0 : exchanged / all;
}

// A slot's tensors are those that are received, which rows are about, and behind them those that are derived.
InPlaceFlip::Changed InPlaceFlip::ChangedBetween(const HeldDigests& live, const HeldDigests& staged) const {
  Changed changed;
  for (std::size_t r = 0; r < slots_.layout().ranks.size(); ++r) {
    const RankLayout& rank = slots_.layout().ranks[r];
    std::vector<bool>& tensors = changed.emplace_back(rank.tensors.size());
    for (const MapRow& row : rank.rows) {
      if (row.logical == kFill) continue;
      const auto logical = static_cast<std::size_t>(row.logical);
      if (live.received[r][logical] != staged.received[r][logical]) tensors[static_cast<std::size_t>(row.local)] = true;
    }
    if (live.derived.empty()) continue;
    const std::size_t first = tensors.size() - live.derived[r].size();
    for (std::size_t d = 0; d < live.derived[r].size(); ++d) {
      tensors[first + d] = live.derived[r][d] != staged.derived[r][d];
    }
  }
  return changed;
}

// Neighbours in one piece, with what lies between them.
PairsByRank InPlaceFlip::MemoryOf(const Changed& changed) const {
  PairsByRank memory(changed.size());
  for (std::size_t r = 0; r < changed.size(); ++r) {
    const int rank = static_cast<int>(r);
    const std::span<std::byte> live = slots_.RankMemory(kLiveSlot, rank), other = slots_.RankMemory(kOtherSlot, rank);
    for (std::size_t t = 0; t < changed[r].size(); ++t) {
      if (!changed[r][t]) continue;
      const std::size_t first = t;
      while (t + 1 < changed[r].size() && changed[r][t + 1]) ++t;
      const std::span<std::byte> last = slots_.ShadowTensor(kLiveSlot, rank, static_cast<int>(t));
      const auto begin =
          static_cast<std::size_t>(slots_.ShadowTensor(kLiveSlot, rank, static_cast<int>(first)).data() - live.data());
      const auto bytes = static_cast<std::size_t>(last.data() + last.size() - live.data()) - begin;
      if (bytes > 0) memory[r].push_back({live.subspan(begin, bytes), other.subspan(begin, bytes)});
    }
  }
  return memory;
}

Status InPlaceFlip::Proof(const HeldDigests& held, const Changed& changed) const {
  const TensorMemory live = [this](int engine_rank, int tensor) -> std::span<const std::byte> {
    return slots_.ShadowTensor(kLiveSlot, engine_rank, tensor);
  };
  RETURN_IF_ERROR(CheckReceived(live, held, changed));
  RETURN_IF_ERROR(derived_.Check(live, held.derived, slots_.work()));
  return CheckPaddingIsZero(live, slots_.layout(), slots_.work());
}

// A rank's digest of a logical tensor is over all that it holds of it, so all of that is read where a part was written.
Status InPlaceFlip::CheckReceived(const TensorMemory& live, const HeldDigests& held, const Changed& changed) const {
  std::set<std::pair<int, std::int32_t>> touched;  // engine rank and logical tensor
  ForEachSlice([&](int rank, const Slice& slice) {
    const auto local = static_cast<std::size_t>(slice.engine_tensor);
    if (changed[static_cast<std::size_t>(rank)][local]) touched.emplace(rank, slice.tensor);
  });
  std::vector<SlotSource> boxes;
  std::vector<std::pair<int, std::int32_t>> of_box;
  ForEachSlice([&](int rank, const Slice& slice) {
    if (!touched.contains({rank, slice.tensor})) return;
    boxes.push_back({BoxOfSlice(engine_plan_, slots_.layout(), slice, rank, slice.logical_box),
                     live(rank, slice.engine_tensor).data()});
    of_box.emplace_back(rank, slice.tensor);
  });
  ASSIGN_OR_RETURN(const std::vector<TensorDigest> digests, slots_.work().Digest(boxes));
  std::map<std::pair<int, std::int32_t>, TensorDigest> memory;
  for (std::size_t i = 0; i < digests.size(); ++i) memory[of_box[i]] += digests[i];
  for (const auto& [place, digest] : memory) {
    const auto [rank, tensor] = place;
    const TensorDigest& wanted = held.received[static_cast<std::size_t>(rank)][static_cast<std::size_t>(tensor)];
    if (digest == wanted) continue;
    return Status::DataLoss("digest_mismatch",
                            fmt::format("tensor {} on engine rank {}: memory={} version={}",
                                        slots_.layout().tensors[static_cast<std::size_t>(tensor)].name, rank,
                                        digest.ToHex(), wanted.ToHex()));
  }
  return OkStatus();
}

template <typename Visit>
void InPlaceFlip::ForEachSlice(const Visit& visit) const {
  for (const Bucket& bucket : engine_plan_.plan.buckets) {
    for (const Slice& slice : bucket.slices) visit(engine_plan_.engine_rank(bucket), slice);
  }
}

}  // namespace bascule
