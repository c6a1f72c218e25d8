// What surrounds the library's product: a thread takes numbers a grid apart.
#include <algorithm>

#include "kernels/cast.h"
#include "kernels/cuda/lane.h"
#include "kernels/gemm_device.h"

namespace bascule {
namespace kernel {

using namespace cuda_internal;

constexpr int kSplitThreads = 256;

__global__ void __launch_bounds__(kSplitThreads)
    SplitIntoBf16(const float* x, std::int64_t count, int pieces, std::uint16_t* split) {
  const std::int64_t threads = std::int64_t{gridDim.x} * kSplitThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kSplitThreads + threadIdx.x; i < count; i += threads) {
    float rest = x[i];
    for (int p = 0; p < pieces; ++p) {
      const std::uint16_t piece = Bf16BitsOfF32Bits(std::bit_cast<std::uint32_t>(rest));
      split[p * count + i] = piece;
      rest = rest - std::bit_cast<float>(F32BitsOfBf16Bits(piece));  // exact
    }
  }
}

__global__ void __launch_bounds__(kSplitThreads) SumPieces(const float* z, std::int64_t rows, std::int64_t outputs,
                                                           float* y, std::int64_t y_stride, bool accumulate) {
  const std::int64_t piece = rows * outputs;
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    for (std::int64_t o = threadIdx.x; o < outputs; o += kSplitThreads) {
      const float* const at = z + r * outputs + o;
      const float sum = (at[2 * piece] + at[piece]) + at[0];
      float& to = y[r * y_stride + o];
      to = accumulate ? to + sum : sum;
    }
  }
}

}  // namespace kernel

namespace {

constexpr std::int64_t kBlocksMax = 2048;

}  // namespace

Status SplitIntoBf16OnDevice(const float* x, std::int64_t count, int pieces, std::uint16_t* split,
                             StreamHandle stream) {
  const std::int64_t blocks = (count + kernel::kSplitThreads - 1) / kernel::kSplitThreads;
  return LaunchOn<kernel::SplitIntoBf16>(stream, "SplitIntoBf16", std::min(blocks, kBlocksMax), kernel::kSplitThreads,
                                         x, count, pieces, split);
}

Status SumPiecesOnDevice(const float* z, std::int64_t rows, std::int64_t outputs, float* y, std::int64_t y_stride,
                         bool accumulate, StreamHandle stream) {
  return LaunchOn<kernel::SumPieces>(stream, "SumPieces", std::min(rows, kBlocksMax), kernel::kSplitThreads, z, rows,
                                     outputs, y, y_stride, accumulate);
}

}  // namespace bascule
