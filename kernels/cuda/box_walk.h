// How the warps of a grid go through a table of boxes (kernels/box_moves.h): each takes a range of tiles; its lanes
// find the segments of a tile, one each, at the price of one search and a few divisions; then the warp takes the
// segments one after another, 512 bytes at a time, or, when runs are short, each lane its own.
//
// Thread-safety: for the threads of one block.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/box_moves.h"
#include "kernels/cuda/digest_sum.h"
#include "kernels/cuda/piece.h"

namespace bascule::cuda_internal {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kBlockThreads = 256;
inline constexpr int kBlockWarps = kBlockThreads / kWarp;
// Enough for every multiprocessor of today's devices to hold as many blocks as fit; more would compute their keys for
// less work each.
inline constexpr std::int64_t kGridBlocksMax = 1024;

struct Segment {
  std::uint64_t source = 0;  // addresses of the element at `begin`
  std::uint64_t target = 0;
  int begin = 0;  // bytes in its chunk of the logical tensor: a multiple of the element's size
  int end = 0;    // == begin: empty
  DigestSums chunk_key;
};

__device__ inline std::int64_t SourceBytes(const MoveEntry& entry, std::int64_t converted_bytes) {
  switch (entry.conversion) {
    case Conversion::kF32ToBf16:
      return converted_bytes * 2;
    case Conversion::kBf16ToF32:
      return converted_bytes / 2;
    default:
      return entry.fills ? 0 : converted_bytes;
  }
}

template <bool kDigest>
__device__ inline Segment FindSegment(const MoveBatch& batch, const MoveEntry& entry, std::int64_t index) {
  Segment segment;
  if (index >= entry.segments) return segment;
  const std::int64_t run = index / entry.segments_per_run;
  const std::int64_t in_run = index - run * entry.segments_per_run;
  const auto [source, target, logical] = BeginOfRun(entry, run);
  const std::int64_t chunk = logical / kDigestChunkBytes + in_run;
  const std::int64_t chunk_begin = chunk * kDigestChunkBytes;
  const std::int64_t begin = std::max(logical, chunk_begin);
  const std::int64_t end = std::min(logical + entry.run_bytes, chunk_begin + kDigestChunkBytes);
  if (begin >= end) return segment;
  segment.source = batch.source_base + static_cast<std::uint64_t>(source + SourceBytes(entry, begin - logical));
  segment.target = batch.target_base + static_cast<std::uint64_t>(target + begin - logical);
  segment.begin = static_cast<int>(begin - chunk_begin);
  segment.end = static_cast<int>(end - chunk_begin);
  if constexpr (kDigest) {
    for (int l = 0; l < static_cast<int>(kLanes); ++l) {
      segment.chunk_key.lane[l] = digest_internal::ChunkKey(entry.key.seed[l], static_cast<std::uint64_t>(chunk));
    }
  }
  return segment;
}

// That of lane `from`, for all.
template <bool kDigest>
__device__ inline Segment Shared(const Segment& own, int from) {
  Segment segment;
  segment.begin = __shfl_sync(kAllLanes, own.begin, from);
  segment.end = __shfl_sync(kAllLanes, own.end, from);
  segment.source = __shfl_sync(kAllLanes, own.source, from);
  segment.target = __shfl_sync(kAllLanes, own.target, from);
  if constexpr (kDigest) {
    for (int l = 0; l < static_cast<int>(kLanes); ++l) {
      segment.chunk_key.lane[l] = __shfl_sync(kAllLanes, own.chunk_key.lane[l], from);
    }
  }
  return segment;
}

// The last entry of which first(entry) <= at: the one that holds `at`.
template <typename First>
__device__ inline std::int64_t FindEntry(std::int64_t entry_count, std::int64_t at, First&& first) {
  std::int64_t low = 0, high = entry_count;  // first(low) <= at < first(high)
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (first(middle) <= at ? low : high) = middle;
  }
  return low;
}

// What this warp has of `count` things that all warps of the grid share.
struct WarpRange {
  std::int64_t first, last;
};
__device__ inline WarpRange RangeOfWarp(std::int64_t count) {
  const std::int64_t warp = std::int64_t{blockIdx.x} * kBlockWarps + threadIdx.x / kWarp;
  const std::int64_t warps = std::int64_t{gridDim.x} * kBlockWarps;
  return {count * warp / warps, count * (warp + 1) / warps};
}

// Calls work(entry, index of the entry, first tile in it, last) for what this warp has of the batch's tiles.
template <typename Work>
__device__ inline void ForEachEntryOfWarp(const MoveBatch& batch, Work&& work) {
  const auto [begin, last] = RangeOfWarp(batch.tiles);
  for (std::int64_t tile = begin; tile < last;) {
    const std::int64_t index =
        FindEntry(batch.entry_count, tile, [&](std::int64_t entry) { return batch.entries[entry].first_tile; });
    const MoveEntry& entry = batch.entries[index];
    const std::int64_t tiles = (entry.segments + entry.tile_segments - 1) / entry.tile_segments;
    const std::int64_t until = std::min(last, entry.first_tile + tiles);
    work(entry, index, tile - entry.first_tile, until - entry.first_tile);
    tile = until;
  }
}

inline std::int64_t GridBlocks(std::int64_t warps) {
  return std::min(kGridBlocksMax, (warps + kBlockWarps - 1) / kBlockWarps);
}

}  // namespace bascule::cuda_internal
