#include "engine_side/in_place_flip.h"

#include <algorithm>

#include "base/log.h"

namespace bascule {
namespace {

// Two slots that are never swapped: the first version goes to the first slot, which so is live for good.
constexpr int kLiveSlot = 0;
constexpr int kOtherSlot = 1;
constexpr std::size_t kSampleBytes = 32 << 20;

std::vector<BlockExchange::Pair> MemoryOf(WeightSlots& slots) {
  std::vector<BlockExchange::Pair> memory;
  for (std::size_t rank = 0; rank < slots.layout().ranks.size(); ++rank) {
    const int engine_rank = static_cast<int>(rank);
    memory.push_back({slots.RankMemory(kLiveSlot, engine_rank), slots.RankMemory(kOtherSlot, engine_rank)});
  }
  return memory;
}

Result<BlockExchange> MakeExchange(std::span<const BlockExchange::Pair> memory, SlotWork& work, BlockCopier* copier) {
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
Result<Duration> Estimate(std::vector<BlockExchange::Pair> memory, SlotWork& work, BlockCopier* copier, Clock& clock) {
  std::size_t total = 0, sampled = 0;
  for (BlockExchange::Pair& pair : memory) {
    total += pair.a.size();
    const std::size_t bytes = std::min(pair.a.size(), kSampleBytes - sampled);
    pair = {pair.a.first(bytes), pair.b.first(bytes)};
    sampled += bytes;
  }
  if (sampled == 0) return Duration::zero();
  ASSIGN_OR_RETURN(BlockExchange exchange, MakeExchange(memory, work, copier));
  const TimePoint begin = clock.Now();
  RETURN_IF_ERROR(exchange.Run());
  for (std::size_t rank = 0; rank < memory.size(); ++rank) {
    const SlotSource bytes = BytesOf(memory[rank].a, static_cast<int>(rank));
    RETURN_IF_ERROR(work.Digest(std::span(&bytes, 1)).status());
  }
  const auto ratio = static_cast<double>(total) / static_cast<double>(sampled);
  return std::chrono::duration_cast<Duration>((clock.Now() - begin) * ratio);
}

}  // namespace

Result<std::unique_ptr<InPlaceFlip>> InPlaceFlip::Create(WeightSlots& slots, const ReceivePlan& engine_plan,
                                                         const DerivedTensors& derived, BlockCopier* copier,
                                                         Clock& clock) {
  CHECK(slots.slot_count() == 2);
  const std::vector<BlockExchange::Pair> memory = MemoryOf(slots);
  ASSIGN_OR_RETURN(const Duration estimated, Estimate(memory, slots.work(), copier, clock));
  ASSIGN_OR_RETURN(BlockExchange exchange, MakeExchange(memory, slots.work(), copier));
  return std::unique_ptr<InPlaceFlip>(new InPlaceFlip(slots, engine_plan, derived, std::move(exchange), estimated));
}

Status InPlaceFlip::Exchange(const HeldDigests& live, const HeldDigests& staged) {
  Status why = exchange_.Run();
  if (why.ok()) why = Proof(staged);
  if (why.ok()) return OkStatus();
  Status undone = exchange_.Undo();
  if (undone.ok()) undone = Proof(live);
  LogError("flip_failed", "in_place why=\"{}\" undone=\"{}\"", why.ToString(), undone.ToString());
  if (undone.ok()) {
    return Status::Aborted("flip_undone", fmt::format("the old version is live still: {}", why.ToString()));
  }
  return Status::DataLoss("live_lost", fmt::format("live memory holds no version: {}; and going back: {}",
                                                   why.ToString(), undone.ToString()));
}

Status InPlaceFlip::Proof(const HeldDigests& held) const {
  const TensorMemory live = [this](int engine_rank, int tensor) -> std::span<const std::byte> {
    return slots_.ShadowTensor(kLiveSlot, engine_rank, tensor);
  };
  ASSIGN_OR_RETURN(const MemoryDigest memory, DigestMemory(live, slots_.layout(), engine_plan_, slots_.work()));
  for (std::size_t rank = 0; rank < held.received.size(); ++rank) {
    for (std::size_t tensor = 0; tensor < held.received[rank].size(); ++tensor) {
      if (memory.held_by_rank[rank][tensor] == held.received[rank][tensor]) continue;
      return Status::DataLoss(
          "digest_mismatch",
          fmt::format("tensor {} on engine rank {}: memory={} version={}", slots_.layout().tensors[tensor].name, rank,
                      memory.held_by_rank[rank][tensor].ToHex(), held.received[rank][tensor].ToHex()));
    }
  }
  RETURN_IF_ERROR(derived_.Check(live, held.derived, slots_.work()));
  return CheckPaddingIsZero(live, slots_.layout(), slots_.work());
}

}  // namespace bascule
