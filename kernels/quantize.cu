// A thread block of 256 takes one block of 128 x 128: thread t the 8 columns from t % 16 * 8 on, of every sixteenth row
// from t / 16 on. The eight pieces that it has stay in its registers from the largest magnitude to the codes.
#include <algorithm>

#include "kernels/cuda/box_walk.h"
#include "kernels/quantize.h"
#include "kernels/quantize_device.h"

namespace bascule {
namespace cuda_internal {
namespace {

constexpr int kPieceColumns = 8;
constexpr int kRowThreads = kFp8Block / kPieceColumns;
constexpr int kRowsAtOnce = kBlockThreads / kRowThreads;
constexpr int kThreadPieces = kFp8Block / kRowsAtOnce;
constexpr unsigned kInfinity = 0x7f80;

// Where this thread's pieces are in the matrix.
struct BlockPart {
  std::int64_t first_row, column, rows, columns;
  int width;  // columns of a piece that the matrix has, 0 to 8
  bool aligned;
  std::int64_t block;

  __device__ bool Has(int piece) const { return width > 0 && first_row + piece * kRowsAtOnce < rows; }
  __device__ std::int64_t Element(int piece) const { return (first_row + piece * kRowsAtOnce) * columns + column; }
};

__device__ BlockPart PartOfThread(std::int64_t rows, std::int64_t columns, const std::byte* bf16,
                                  const std::byte* codes) {
  const std::int64_t block_columns = Fp8Blocks(columns), block = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  BlockPart part{.rows = rows, .columns = columns, .block = block};
  part.first_row = block / block_columns * kFp8Block + thread / kRowThreads;
  part.column = block % block_columns * kFp8Block + thread % kRowThreads * kPieceColumns;
  part.width = static_cast<int>(std::clamp<std::int64_t>(columns - part.column, 0, kPieceColumns));
  part.aligned = columns % kPieceColumns == 0 &&
                 ((reinterpret_cast<std::uintptr_t>(bf16) | reinterpret_cast<std::uintptr_t>(codes)) & 15) == 0;
  return part;
}

__device__ unsigned Bf16Of(const Piece& piece, int column) {
  return piece.word[column / 2] >> column % 2 * 16 & 0xffffu;
}
__device__ float WidenedOf(const Piece& piece, int column) {
  return std::bit_cast<float>(F32BitsOfBf16Bits(static_cast<std::uint16_t>(Bf16Of(piece, column))));
}

// The largest of `value` over the threads of the block. `warps` is shared memory.
__device__ unsigned LargestOfBlock(unsigned value, unsigned* warps) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    value = std::max(value, __shfl_xor_sync(kAllLanes, value, lanes));
  }
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  for (int w = 0; w < kBlockWarps; ++w) value = std::max(value, warps[w]);
  return value;
}

__device__ void NoteNotFinite(const Piece& piece, std::int64_t element, std::int64_t* first_not_finite) {
  for (int c = 0; c < kPieceColumns; ++c) {
    if ((Bf16Of(piece, c) & 0x7fffu) < kInfinity) continue;
    // As unsigned, -1 is above every index.
    atomicMin(reinterpret_cast<unsigned long long*>(first_not_finite), static_cast<unsigned long long>(element + c));
    return;
  }
}

}  // namespace
}  // namespace cuda_internal

namespace kernel {

using namespace cuda_internal;

__global__ void NoneIsNotFinite(std::int64_t* first_not_finite) { *first_not_finite = -1; }

__global__ void __launch_bounds__(kBlockThreads)
    QuantizeFp8Blocks(std::int64_t rows, std::int64_t columns, const std::byte* bf16, std::byte* codes,
                      float* scale_inv, std::int64_t* first_not_finite) {
  __shared__ unsigned warps[kBlockWarps];
  const BlockPart part = PartOfThread(rows, columns, bf16, codes);
  Piece pieces[kThreadPieces];
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < kThreadPieces; ++i) {
    if (!part.Has(i)) continue;
    const std::byte* from = bf16 + 2 * part.Element(i);
    pieces[i] = part.aligned ? LoadStreaming(from) : LoadPart<Same<std::uint16_t>>(from, 0, 2 * part.width);
#pragma unroll
    for (int c = 0; c < kPieceColumns; ++c) largest = std::max(largest, Bf16Of(pieces[i], c) & 0x7fffu);
  }
  if (largest >= kInfinity) {
#pragma unroll
    for (int i = 0; i < kThreadPieces; ++i) {
      if (part.Has(i)) NoteNotFinite(pieces[i], part.Element(i), first_not_finite);
    }
  }
  largest = LargestOfBlock(largest, warps);
  const float amax = std::bit_cast<float>(F32BitsOfBf16Bits(static_cast<std::uint16_t>(largest)));
  const float scale = std::max(amax / kF8E4M3Max, float{kScaleInvMin});
  if (threadIdx.x == 0) scale_inv[part.block] = scale;
#pragma unroll
  for (int i = 0; i < kThreadPieces; ++i) {
    if (!part.Has(i)) continue;
    std::byte* const to = codes + part.Element(i);
    Piece packed;
#pragma unroll
    for (int c = 0; c < kPieceColumns; ++c) {
      packed.word[c / 4] |= std::uint32_t{F8E4M3OfF32(WidenedOf(pieces[i], c) / scale)} << c % 4 * 8;
    }
    if (part.aligned) {
      __stcs(reinterpret_cast<uint2*>(to), uint2{packed.word[0], packed.word[1]});
    } else {
      StorePart<std::uint8_t>(packed, to, 0, part.width);
    }
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    DequantizeFp8Blocks(std::int64_t rows, std::int64_t columns, const std::byte* codes, const float* scale_inv,
                        std::byte* bf16) {
  const BlockPart part = PartOfThread(rows, columns, bf16, codes);
  const float scale = scale_inv[part.block];
  for (int i = 0; i < kThreadPieces; ++i) {
    if (!part.Has(i)) continue;
    const std::byte* from = codes + part.Element(i);
    std::byte* const to = bf16 + 2 * part.Element(i);
    Piece packed;
    if (part.aligned) {
      const uint2 loaded = __ldcs(reinterpret_cast<const uint2*>(from));
      packed = {{loaded.x, loaded.y}};
    } else {
      packed = LoadPart<Same<std::uint8_t>>(from, 0, part.width);
    }
    Piece piece;
#pragma unroll
    for (int c = 0; c < kPieceColumns; ++c) {
      const float x = F32OfF8E4M3(static_cast<std::uint8_t>(packed.word[c / 4] >> c % 4 * 8 & 0xffu)) * scale;
      piece.word[c / 2] |= std::uint32_t{Bf16BitsOfF32Bits(std::bit_cast<std::uint32_t>(x))} << c % 2 * 16;
    }
    if (part.aligned) {
      StoreStreaming(piece, to);
    } else {
      StorePart<std::uint16_t>(piece, to, 0, 2 * part.width);
    }
  }
}

}  // namespace kernel

Status QuantizeFp8BlocksOnDevice(std::int64_t rows, std::int64_t columns, const std::byte* bf16, std::byte* codes,
                                 float* scale_inv, std::int64_t* first_not_finite, StreamHandle stream) {
  RETURN_IF_ERROR(LaunchOn<kernel::NoneIsNotFinite>(stream, "NoneIsNotFinite", 1, 1, first_not_finite));
  return LaunchOn<kernel::QuantizeFp8Blocks>(stream, "QuantizeFp8Blocks", Fp8Blocks(rows) * Fp8Blocks(columns),
                                             cuda_internal::kBlockThreads, rows, columns, bf16, codes, scale_inv,
                                             first_not_finite);
}

Status DequantizeFp8BlocksOnDevice(std::int64_t rows, std::int64_t columns, const std::byte* codes,
                                   const float* scale_inv, std::byte* bf16, StreamHandle stream) {
  return LaunchOn<kernel::DequantizeFp8Blocks>(stream, "DequantizeFp8Blocks", Fp8Blocks(rows) * Fp8Blocks(columns),
                                               cuda_internal::kBlockThreads, rows, columns, codes, scale_inv, bf16);
}

}  // namespace bascule
