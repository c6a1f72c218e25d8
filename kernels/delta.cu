// Comparing: a block takes kCompareElements, a thread 16 neighbours, whose bits of difference are a word. Counts are
// summed by one block; then each block knows where its changes go, and reads only them. Scattering: a warp takes a
// range of all changes, a lane one at a time.
#include <bit>

#include "kernels/cuda/box_walk.h"
#include "kernels/delta_device.h"

namespace bascule {
namespace cuda_internal {
namespace {

constexpr int kThreadElements = 16;
static_assert(kBlockThreads * kThreadElements == kCompareElements);

// Bit i says whether item i of a piece differs.
template <typename Item>
__device__ unsigned DifferentItems(const Piece& base, const Piece& next) {
  unsigned bits = 0;
#pragma unroll
  for (int at = 0; at < kPieceBytes; at += static_cast<int>(sizeof(Item))) {
    const int word = at / 4;
    std::uint32_t difference = base.word[word] ^ next.word[word];
    if constexpr (sizeof(Item) == 8) {
      difference |= base.word[word + 1] ^ next.word[word + 1];
    } else if constexpr (sizeof(Item) < 4) {
      difference = difference >> at % 4 * 8 & ((1u << 8 * sizeof(Item)) - 1);
    }
    bits |= difference != 0 ? 1u << at / static_cast<int>(sizeof(Item)) : 0u;
  }
  return bits;
}

// Of the elements from `first` on, as many as there are of sixteen.
template <typename Item>
__device__ unsigned ChangedBits(const CompareBatch& batch, std::int64_t first) {
  constexpr int kPieceItems = kPieceBytes / static_cast<int>(sizeof(Item));
  const auto* base = reinterpret_cast<const Item*>(batch.base) + first;
  const auto* next = reinterpret_cast<const Item*>(batch.next) + first;
  const bool aligned =
      ((reinterpret_cast<std::uintptr_t>(batch.base) | reinterpret_cast<std::uintptr_t>(batch.next)) & 15) == 0;
  unsigned bits = 0;
  if (aligned && first + kThreadElements <= batch.count) {
#pragma unroll
    for (int i = 0; i < kThreadElements; i += kPieceItems) {
      bits |= DifferentItems<Item>(LoadStreaming(reinterpret_cast<const std::byte*>(base + i)),
                                   LoadStreaming(reinterpret_cast<const std::byte*>(next + i)))
              << i;
    }
    return bits;
  }
  for (int i = 0; i < kThreadElements; ++i) {
    if (first + i < batch.count && base[i] != next[i]) bits |= 1u << i;
  }
  return bits;
}

__device__ unsigned ChangedBitsOf(const CompareBatch& batch, std::int64_t first) {
  switch (batch.item_bytes) {
    case 1:
      return ChangedBits<std::uint8_t>(batch, first);
    case 2:
      return ChangedBits<std::uint16_t>(batch, first);
    case 4:
      return ChangedBits<std::uint32_t>(batch, first);
    default:
      return ChangedBits<std::uint64_t>(batch, first);
  }
}

// The sum of `value` over the threads of the block before this one; `total` becomes the sum over all. `warp_sums` is
// shared memory.
__device__ std::int64_t SumBefore(std::int64_t value, std::int64_t* warp_sums, std::int64_t& total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  std::int64_t sum = value;  // up to this lane
  for (int lanes = 1; lanes < kWarp; lanes *= 2) {
    const std::int64_t before = __shfl_up_sync(kAllLanes, sum, lanes);
    if (lane >= lanes) sum += before;
  }
  if (lane == kWarp - 1) warp_sums[warp] = sum;
  __syncthreads();
  std::int64_t before = sum - value;
  total = 0;
  for (int w = 0; w < kBlockWarps; ++w) {
    if (w < warp) before += warp_sums[w];
    total += warp_sums[w];
  }
  __syncthreads();  // the next call writes there again
  return before;
}

template <typename Item>
__device__ void CopyItem(const std::byte* from, std::byte* to) {
  *reinterpret_cast<Item*>(to) = *reinterpret_cast<const Item*>(from);
}
__device__ void CopyItemOf(int item_bytes, const std::byte* from, std::byte* to) {
  switch (item_bytes) {
    case 1:
      return CopyItem<std::uint8_t>(from, to);
    case 2:
      return CopyItem<std::uint16_t>(from, to);
    case 4:
      return CopyItem<std::uint32_t>(from, to);
    default:
      return CopyItem<std::uint64_t>(from, to);
  }
}

// A change of a box: where its element lies, and its new one.
struct Change {
  std::byte* target;
  std::int64_t logical;  // byte
  std::int64_t item;     // byte in `items`
};
__device__ Change FindChange(const ChangeBatch& batch, std::int64_t entry_index, std::int64_t change) {
  const MoveEntry& entry = batch.entries[entry_index];
  const std::int64_t at = std::int64_t{batch.positions[change]} * entry.item_bytes;
  const std::int64_t run = at / entry.run_bytes, within = at - run * entry.run_bytes;
  const auto begin = BeginOfRun(entry, run);
  return {
      reinterpret_cast<std::byte*>(batch.target_base + static_cast<std::uint64_t>(begin[MoveEntry::kTarget] + within)),
      begin[MoveEntry::kLogical] + within,
      batch.first_item[entry_index] + (change - batch.first_change[entry_index]) * entry.item_bytes};
}

// Calls work(index of the entry, first change, last) for what this warp has of the batch's changes.
template <typename Work>
__device__ void ForEachListOfWarp(const ChangeBatch& batch, Work&& work) {
  const auto [begin, last] = RangeOfWarp(batch.changes);
  for (std::int64_t change = begin; change < last;) {
    const std::int64_t index =
        FindEntry(batch.entry_count, change, [&](std::int64_t entry) { return batch.first_change[entry]; });
    const std::int64_t until = std::min(last, batch.first_change[index + 1]);
    work(index, change, until);
    change = until;
  }
}

// The words that the item at `item` gives the digest at logical byte `logical`: two for an item of eight bytes.
__device__ void AddItem(const std::uint32_t* keys, int item_bytes, const std::byte* item, std::int64_t logical,
                        DigestSums& sums) {
  const auto within = static_cast<int>(logical % kDigestChunkBytes);
  for (int at = 0; at < item_bytes; at += 4) {
    const std::uint32_t word = item_bytes == 1 ? static_cast<std::uint32_t>(*item) << within % 4 * 8
                               : item_bytes == 2
                                   ? std::uint32_t{*reinterpret_cast<const std::uint16_t*>(item)} << within % 4 * 8
                                   : *reinterpret_cast<const std::uint32_t*>(item + at);
    for (int l = 0; l < static_cast<int>(kLanes); ++l) {
      sums.lane[l] += std::uint64_t{keys[l * static_cast<int>(kChunkWords) + (within + at) / 4]} * word;
    }
  }
}

// As fine as the work can be cut: a lane has four changes.
constexpr std::int64_t kWarpChanges = 128;
std::int64_t ChangeBlocks(const ChangeBatch& batch) {
  return GridBlocks((batch.changes + kWarpChanges - 1) / kWarpChanges);
}

}  // namespace
}  // namespace cuda_internal

namespace kernel {

using namespace cuda_internal;

__global__ void __launch_bounds__(kBlockThreads) Compare(CompareBatch batch) {
  __shared__ std::int64_t warp_sums[kBlockWarps];
  const std::int64_t word = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  const unsigned bits = ChangedBitsOf(batch, word * kThreadElements);
  batch.changed[word] = static_cast<std::uint16_t>(bits);
  std::int64_t total = 0;
  SumBefore(std::popcount(bits), warp_sums, total);
  if (threadIdx.x == 0) batch.first_change[blockIdx.x] = total;
}

// One block: counts of blocks become sums of the counts before.
__global__ void __launch_bounds__(kBlockThreads) SumCounts(std::int64_t* counts, std::int64_t blocks) {
  __shared__ std::int64_t warp_sums[kBlockWarps];
  std::int64_t before = 0;
  for (std::int64_t first = 0; first < blocks; first += kBlockThreads) {
    const std::int64_t block = first + threadIdx.x;
    const std::int64_t count = block < blocks ? counts[block] : 0;
    std::int64_t total = 0;
    const std::int64_t sum = before + SumBefore(count, warp_sums, total);
    if (block < blocks) counts[block] = sum;
    before += total;
  }
  if (threadIdx.x == 0) counts[blocks] = before;
}

__global__ void __launch_bounds__(kBlockThreads) GatherChanges(CompareBatch batch) {
  __shared__ std::int64_t warp_sums[kBlockWarps];
  const std::int64_t first = batch.first_change[blockIdx.x];
  if (batch.first_change[blockIdx.x + 1] == first) return;
  const std::int64_t word = std::int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  unsigned bits = batch.changed[word];
  std::int64_t total = 0;
  std::int64_t change = first + SumBefore(std::popcount(bits), warp_sums, total);
  for (; bits != 0 && change < batch.capacity; bits &= bits - 1, ++change) {
    const std::int64_t position = word * kThreadElements + std::countr_zero(bits);
    batch.positions[change] = static_cast<std::uint32_t>(position);
    CopyItemOf(batch.item_bytes, batch.next + position * batch.item_bytes, batch.items + change * batch.item_bytes);
  }
}

__global__ void __launch_bounds__(kBlockThreads) Scatter(ChangeBatch batch) {
  ForEachListOfWarp(batch, [&](std::int64_t index, std::int64_t first, std::int64_t last) {
    const int item_bytes = batch.entries[index].item_bytes;
    for (std::int64_t i = first + threadIdx.x % kWarp; i < last; i += kWarp) {
      const Change change = FindChange(batch, index, i);
      CopyItemOf(item_bytes, change.target, batch.replaced + change.item);
      CopyItemOf(item_bytes, batch.items + change.item, change.target);
    }
  });
}

__global__ void __launch_bounds__(kBlockThreads) DigestChanges(ChangeBatch batch) {
  alignas(16) __shared__ std::uint32_t word_keys[kLanes * kChunkWords];
  ComputeWordKeys(word_keys);
  __syncthreads();
  ForEachListOfWarp(batch, [&](std::int64_t index, std::int64_t first, std::int64_t last) {
    const MoveEntry& entry = batch.entries[index];
    DigestSums total;
    for (std::int64_t i = first + threadIdx.x % kWarp; i < last; i += kWarp) {
      const Change change = FindChange(batch, index, i);
      DigestSums after, before;
      AddItem(word_keys, entry.item_bytes, batch.items + change.item, change.logical, after);
      AddItem(word_keys, entry.item_bytes, change.target, change.logical, before);
      const auto chunk = static_cast<std::uint64_t>(change.logical / kDigestChunkBytes);
      for (int l = 0; l < static_cast<int>(kLanes); ++l) {
        total.lane[l] += digest_internal::ChunkKey(entry.key.seed[l], chunk) * (after.lane[l] - before.lane[l]);
      }
    }
    AddToDigest(total, &batch.digests[index]);
  });
}

}  // namespace kernel

Status ExtractChangesOnDevice(const CompareBatch& batch, StreamHandle stream) {
  const std::int64_t blocks = CompareBlocks(batch.count);
  RETURN_IF_ERROR(LaunchOn<kernel::Compare>(stream, "Compare", blocks, cuda_internal::kBlockThreads, batch));
  RETURN_IF_ERROR(
      LaunchOn<kernel::SumCounts>(stream, "SumCounts", 1, cuda_internal::kBlockThreads, batch.first_change, blocks));
  return LaunchOn<kernel::GatherChanges>(stream, "GatherChanges", blocks, cuda_internal::kBlockThreads, batch);
}

Status ScatterOnDevice(const ChangeBatch& batch, StreamHandle stream) {
  return LaunchOn<kernel::Scatter>(stream, "Scatter", cuda_internal::ChangeBlocks(batch), cuda_internal::kBlockThreads,
                                   batch);
}

Status DigestChangesOnDevice(const ChangeBatch& batch, StreamHandle stream) {
  return LaunchOn<kernel::DigestChanges>(stream, "DigestChanges", cuda_internal::ChangeBlocks(batch),
                                         cuda_internal::kBlockThreads, batch);
}

}  // namespace bascule
