// Each warp moves a range of the batch's tiles (cuda/box_walk.h). The kernel that also digests is in digest.cu.
#include "kernels/cuda/box_mover.h"
#include "kernels/pack_device.h"

namespace bascule {
namespace kernel {

using namespace cuda_internal;

__global__ void __launch_bounds__(kBlockThreads) MoveBoxes(MoveBatch batch) {
  ForEachEntryOfWarp(batch, [&](const MoveEntry& entry, std::int64_t, std::int64_t first, std::int64_t last) {
    BoxMover</*kDigest=*/false> mover(batch, entry, /*stores=*/true, nullptr);
    for (std::int64_t tile = first; tile < last; ++tile) mover.Tile(tile);
  });
}

}  // namespace kernel

Status MoveBoxesOnDevice(const MoveBatch& batch, StreamHandle stream) {
  return LaunchOn<kernel::MoveBoxes>(stream, "MoveBoxes", cuda_internal::GridBlocks(batch.tiles),
                                     cuda_internal::kBlockThreads, batch);
}

}  // namespace bascule
