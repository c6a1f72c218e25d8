// Each warp reads a range of the batch's tiles (cuda/box_walk.h) and sums as cuda/digest_sum.h says, which spells out
// the formula of digest.h with the keys of digest_internal.h, as digest_host.cc does. What is also to be moved is
// stored from the registers that were summed.
#include "kernels/cuda/box_mover.h"
#include "kernels/digest_device.h"
#include "kernels/pack_device.h"

namespace bascule {
namespace kernel {

using namespace cuda_internal;

__global__ void __launch_bounds__(kBlockThreads) DigestBoxes(MoveBatch batch, bool moves) {
  alignas(16) __shared__ std::uint32_t word_keys[kLanes * kChunkWords];
  ComputeWordKeys(word_keys);
  __syncthreads();
  ForEachEntryOfWarp(batch, [&](const MoveEntry& entry, std::int64_t index, std::int64_t first, std::int64_t last) {
    BoxMover</*kDigest=*/true> mover(batch, entry, moves, word_keys);
    for (std::int64_t tile = first; tile < last; ++tile) mover.Tile(tile);
    AddToDigest(mover.total(), &batch.digests[index]);
  });
}

}  // namespace kernel

namespace {

Status Digest(const MoveBatch& batch, bool moves, StreamHandle stream) {
  return LaunchOn<kernel::DigestBoxes>(stream, "DigestBoxes", cuda_internal::GridBlocks(batch.tiles),
                                       cuda_internal::kBlockThreads, batch, moves);
}

}  // namespace

Status DigestBoxesOnDevice(const MoveBatch& batch, StreamHandle stream) { return Digest(batch, false, stream); }
Status MoveAndDigestBoxesOnDevice(const MoveBatch& batch, StreamHandle stream) { return Digest(batch, true, stream); }

}  // namespace bascule
