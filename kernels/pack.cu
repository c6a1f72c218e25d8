// Each warp moves a range of the batch's tiles (cuda/box_walk.h); with a digest it sums while the bytes are in its
// registers.
#include "kernels/cuda/box_mover.h"
#include "kernels/pack_device.h"

namespace bascule {
namespace kernel {

using namespace cuda_internal;

__global__ void __launch_bounds__(kBlockThreads) MoveBoxes(MoveBatch batch) {
  ForEachEntryOfWarp(batch, [&](const MoveEntry& entry, std::int64_t, std::int64_t first, std::int64_t last) {
    BoxMover</*kStore=*/true, /*kDigest=*/false> mover(batch, entry, nullptr);
    for (std::int64_t tile = first; tile < last; ++tile) mover.Tile(tile);
  });
}

__global__ void __launch_bounds__(kBlockThreads) MoveAndDigestBoxes(MoveBatch batch) {
  alignas(16) __shared__ std::uint32_t word_keys[kLanes * kChunkWords];
  ComputeWordKeys(word_keys);
  __syncthreads();
  ForEachEntryOfWarp(batch, [&](const MoveEntry& entry, std::int64_t index, std::int64_t first, std::int64_t last) {
    BoxMover</*kStore=*/true, /*kDigest=*/true> mover(batch, entry, word_keys);
    for (std::int64_t tile = first; tile < last; ++tile) mover.Tile(tile);
    AddToDigest(mover.total(), &batch.digests[index]);
  });
}

}  // namespace kernel

Status MoveBoxesOnDevice(const MoveBatch& batch, StreamHandle stream) {
  return LaunchOn<kernel::MoveBoxes>(stream, "MoveBoxes", cuda_internal::GridBlocks(batch.tiles),
                                     cuda_internal::kBlockThreads, batch);
}

Status MoveAndDigestBoxesOnDevice(const MoveBatch& batch, StreamHandle stream) {
  return LaunchOn<kernel::MoveAndDigestBoxes>(stream, "MoveAndDigestBoxes", cuda_internal::GridBlocks(batch.tiles),
                                              cuda_internal::kBlockThreads, batch);
}

}  // namespace bascule
