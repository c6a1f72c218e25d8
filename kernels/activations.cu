// A block normalises one row: all its threads bring the row into shared memory piece by piece, and sixteen of them add
// up the squares in the order of rms_norm.h. The others take elements a grid apart.
#include <algorithm>
#include <cmath>

#include "kernels/activations_device.h"
#include "kernels/cuda/lane.h"

namespace bascule {
namespace kernel {

using namespace cuda_internal;

constexpr int kThreads = 256;
constexpr int kLaneCount = 16;
constexpr int kPieceFloats = 4096;

__global__ void __launch_bounds__(kThreads)
    RmsNorm(const float* x, std::int64_t size, WeightView w, float eps, float* y) {
  __shared__ float piece[kPieceFloats];
  __shared__ float shared_scale;
  const float* const row = x + blockIdx.x * size;
  float* const out = y + blockIdx.x * size;
  const int thread = static_cast<int>(threadIdx.x);
  float squares = 0;
  for (std::int64_t first = 0; first < size; first += kPieceFloats) {
    const int count = static_cast<int>(std::min<std::int64_t>(size - first, kPieceFloats));
    for (int i = thread; i < count; i += kThreads) piece[i] = row[first + i];
    __syncthreads();
    if (thread < kLaneCount) {
#pragma unroll 8
      for (int i = thread; i < count; i += kLaneCount) squares = __builtin_fmaf(piece[i], piece[i], squares);
    }
    __syncthreads();  // the piece is overwritten
  }
  if (thread < kLaneCount) {
    const float sum = SumSixteen(0xffffu, squares);
    if (thread == 0) shared_scale = 1.0f / std::sqrt(sum / static_cast<float>(size) + eps);
  }
  __syncthreads();
  for (std::int64_t i = thread; i < size; i += kThreads) out[i] = row[i] * shared_scale * WeightAt(w, i);
}

__global__ void __launch_bounds__(kThreads)
    Add(WeightView x, std::int64_t x_stride, std::int64_t rows, std::int64_t size, float* y) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (std::int64_t i = threadIdx.x; i < size; i += kThreads) y[row * size + i] += WeightAt(x, row * x_stride + i);
  }
}

__global__ void __launch_bounds__(kThreads) Swiglu(const float* gate, const float* up, std::int64_t count, float* y) {
  const std::int64_t threads = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += threads) {
    const float g = gate[i];
    y[i] = g / (1.0f + Exp(0.0f - g)) * up[i];
  }
}

__global__ void __launch_bounds__(kThreads)
    Rope(float* x, std::int64_t rows, std::int64_t row_stride, std::int64_t heads, std::int64_t half,
         const float* cosines, const float* sines) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (std::int64_t pair = threadIdx.x; pair < heads * half; pair += kThreads) {
      const std::int64_t head = pair / half, i = pair - head * half;
      float* const at = x + row * row_stride + head * 2 * half + i;
      const float first = at[0], second = at[half], cosine = cosines[row * half + i], sine = sines[row * half + i];
      at[0] = first * cosine - second * sine;
      at[half] = second * cosine + first * sine;
    }
  }
}

}  // namespace kernel

namespace {

constexpr std::int64_t kBlocksMax = 2048;

}  // namespace

Status RmsNormOnDevice(const float* x, std::int64_t rows, std::int64_t size, WeightView w, float eps, float* y,
                       StreamHandle stream) {
  return LaunchOn<kernel::RmsNorm>(stream, "RmsNorm", rows, kernel::kThreads, x, size, w, eps, y);
}

Status AddOnDevice(WeightView x, std::int64_t x_stride, std::int64_t rows, std::int64_t size, float* y,
                   StreamHandle stream) {
  return LaunchOn<kernel::Add>(stream, "Add", std::min(rows, kBlocksMax), kernel::kThreads, x, x_stride, rows, size, y);
}

Status SwigluOnDevice(const float* gate, const float* up, std::int64_t count, float* y, StreamHandle stream) {
  const std::int64_t blocks = (count + kernel::kThreads - 1) / kernel::kThreads;
  return LaunchOn<kernel::Swiglu>(stream, "Swiglu", std::min(blocks, kBlocksMax), kernel::kThreads, gate, up, count, y);
}

Status RopeOnDevice(float* x, std::int64_t rows, std::int64_t row_stride, std::int64_t heads, std::int64_t half,
                    const float* cosines, const float* sines, StreamHandle stream) {
  return LaunchOn<kernel::Rope>(stream, "Rope", std::min(rows, kBlocksMax), kernel::kThreads, x, rows, row_stride,
                                heads, half, cosines, sines);
}

}  // namespace bascule
