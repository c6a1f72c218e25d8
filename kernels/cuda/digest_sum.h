// The digest of kernels/digest.h, summed by the threads of a grid: each adds up its words, a warp adds up its lanes,
// and warps add to one place in device memory. Sums are modulo 2^64, so no order shows in the result.
//
// Thread-safety: for the threads of one block; see each function.
#pragma once

#include <cstdint>

#include "kernels/cuda/piece.h"
#include "kernels/digest_internal.h"

namespace bascule::cuda_internal {

using digest_internal::kChunkWords;
using digest_internal::kLanes;

// Sums of a thread, one for each lane of the digest.
struct DigestSums {
  std::uint64_t lane[kLanes] = {};
};

// B(j, l), for a table in shared memory. It is computed rather than loaded: sixteen keys a thread cost half a
// microsecond of arithmetic and no memory, and 16 bytes of data then meet their 64 bytes of keys without a bank
// conflict, as neighbours read neighbours. Constant memory would serve one address at a time; registers would tie a
// thread to one place in every chunk, and a box of short rows has few of them.
//
// By every thread of the block; a __syncthreads() before the first use.
__device__ inline void ComputeWordKeys(std::uint32_t* keys) {
  for (unsigned i = threadIdx.x; i < kLanes * kChunkWords; i += blockDim.x) keys[i] = digest_internal::WordKey(i);
}

// sums[l] += sum over the piece's words of B(first_word + i, l) * w(i).
__device__ inline void AddPiece(const std::uint32_t* keys, int first_word, const Piece& piece, DigestSums& sums) {
#pragma unroll
  for (int l = 0; l < static_cast<int>(kLanes); ++l) {
    const uint4 key = *reinterpret_cast<const uint4*>(keys + l * static_cast<int>(kChunkWords) + first_word);
    sums.lane[l] += std::uint64_t{key.x} * piece.word[0];
    sums.lane[l] += std::uint64_t{key.y} * piece.word[1];
    sums.lane[l] += std::uint64_t{key.z} * piece.word[2];
    sums.lane[l] += std::uint64_t{key.w} * piece.word[3];
  }
}

// total[l] += A(chunk, l) * sums[l], where chunk_key holds A.
__device__ inline void CloseChunk(const DigestSums& chunk_key, const DigestSums& sums, DigestSums& total) {
#pragma unroll
  for (int l = 0; l < static_cast<int>(kLanes); ++l) total.lane[l] += chunk_key.lane[l] * sums.lane[l];
}

// By every lane of a warp.
__device__ inline void AddToDigest(const DigestSums& sums, TensorDigest* digest) {
#pragma unroll
  for (int l = 0; l < static_cast<int>(kLanes); ++l) {
    std::uint64_t sum = sums.lane[l];
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&digest->lane[l]), static_cast<unsigned long long>(sum));
    }
  }
}

}  // namespace bascule::cuda_internal
