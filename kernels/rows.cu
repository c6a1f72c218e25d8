// A block takes rows one after another, its threads elements of a row. A head is normalised by one block, as a row is
// in activations.cu.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/lane.h"
#include "kernels/rows_device.h"

namespace bascule {
namespace kernel {

using namespace cuda_internal;

constexpr int kRowThreads = 128;
constexpr int kHeadThreads = 64;
constexpr int kHeadLanes = 16;

__global__ void __launch_bounds__(kRowThreads)
    TakeRows(RowTable table, const std::int32_t* index, std::int64_t count, float* y) {
  for (std::int64_t r = blockIdx.x; r < count; r += gridDim.x) {
    const std::int64_t row = index[r] - table.first;
    const bool here = row >= 0 && row < table.rows;
    for (std::int64_t i = threadIdx.x; i < table.size; i += kRowThreads) {
      y[r * table.size + i] = here ? WeightAt(table.data, row * table.size + i) : 0.0f;
    }
  }
}

__global__ void __launch_bounds__(kRowThreads) PlaceRows(const float* x, std::int64_t x_stride, std::int64_t rows,
                                                         std::int64_t size, float* y, std::int64_t y_stride) {
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    for (std::int64_t i = threadIdx.x; i < size; i += kRowThreads) y[r * y_stride + i] = x[r * x_stride + i];
  }
}

__global__ void __launch_bounds__(kHeadThreads)
    RmsNormHeads(float* x, std::int64_t row_stride, std::int64_t heads, std::int64_t size, WeightView w, float eps) {
  __shared__ float head_scale;
  const std::int64_t row = blockIdx.x / heads;
  float* const head = x + row * row_stride + (blockIdx.x - row * heads) * size;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kHeadLanes) {
    float squares = 0;
    for (std::int64_t i = thread; i < size; i += kHeadLanes) squares = __builtin_fmaf(head[i], head[i], squares);
    const float sum = SumSixteen(0xffffu, squares);
    if (thread == 0) head_scale = 1.0f / std::sqrt(sum / static_cast<float>(size) + eps);
  }
  __syncthreads();
  for (std::int64_t i = thread; i < size; i += kHeadThreads) head[i] = head[i] * head_scale * WeightAt(w, i);
}

__global__ void __launch_bounds__(kRowThreads)
    SwigluRows(const float* x, std::int64_t rows, std::int64_t size, float* y) {
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const float* const gate = x + r * 2 * size;
    for (std::int64_t i = threadIdx.x; i < size; i += kRowThreads) {
      const float g = gate[i];
      y[r * size + i] = g / (1.0f + Exp(0.0f - g)) * gate[size + i];
    }
  }
}

}  // namespace kernel

namespace {

constexpr std::int64_t kBlocksMax = 2048;

}  // namespace

Status TakeRowsOnDevice(const RowTable& table, const std::int32_t* index, std::int64_t count, float* y,
                        StreamHandle stream) {
  return LaunchOn<kernel::TakeRows>(stream, "TakeRows", std::min(count, kBlocksMax), kernel::kRowThreads, table, index,
                                    count, y);
}

Status PlaceRowsOnDevice(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t size, float* y,
                         std::int64_t y_stride, StreamHandle stream) {
  return LaunchOn<kernel::PlaceRows>(stream, "PlaceRows", std::min(rows, kBlocksMax), kernel::kRowThreads, x, x_stride,
                                     rows, size, y, y_stride);
}

Status RmsNormHeadsOnDevice(float* x, std::int64_t rows, std::int64_t row_stride, std::int64_t heads, std::int64_t size,
                            WeightView w, float eps, StreamHandle stream) {
  return LaunchOn<kernel::RmsNormHeads>(stream, "RmsNormHeads", rows * heads, kernel::kHeadThreads, x, row_stride,
                                        heads, size, w, eps);
}

Status SwigluRowsOnDevice(const float* x, std::int64_t rows, std::int64_t size, float* y, StreamHandle stream) {
  return LaunchOn<kernel::SwigluRows>(stream, "SwigluRows", std::min(rows, kBlocksMax), kernel::kRowThreads, x, rows,
                                      size, y);
}

}  // namespace bascule
