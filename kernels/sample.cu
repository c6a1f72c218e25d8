// A block samples one row. Its threads share the exponentials; the orders of sample.h are kept by few of them: sixteen
// add up the normaliser, one thread for each run of kCdfRun ids adds up its weights, and one thread finds the token.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/lane.h"
#include "kernels/sample_device.h"

namespace bascule {
namespace cuda_internal {
namespace {

constexpr int kThreads = 256;
constexpr int kLaneCount = 16;
constexpr int kPieceFloats = 4096;

// The larger logit, the lower id of equal ones; id -1 is none.
struct Best {
  float logit;
  std::int64_t id;
};
__device__ Best Better(Best a, Best b) {
  if (a.id < 0 || b.id < 0) return a.id < 0 ? b : a;
  if (a.logit != b.logit) return a.logit > b.logit ? a : b;
  return a.id < b.id ? a : b;
}
// Of all threads. `shared` has room for one of each warp.
__device__ Best BestOfBlock(Best best, Best* shared) {
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    best = Better(best,
                  Best{__shfl_xor_sync(0xffffffffu, best.logit, lanes), __shfl_xor_sync(0xffffffffu, best.id, lanes)});
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = best;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w) best = Better(best, shared[w]);
  __syncthreads();  // the next call writes there again
  return best;
}

__device__ bool Banned(const SampleRow& row, std::int64_t id) {
  for (std::int64_t i = 0; i < row.banned_count; ++i) {
    if (row.banned[i] == id) return true;
  }
  return false;
}

// What a pass over the logits finds.
struct Scan {
  Best largest{0, -1}, allowed{0, -1};
  bool finite = true;
};
__device__ Scan ScanLogits(const SampleRow& row, std::int64_t size) {
  Scan scan;
  for (std::int64_t id = threadIdx.x; id < size; id += kThreads) {
    const Best one{row.logits[id], id};
    scan.finite = scan.finite && std::isfinite(one.logit);
    scan.largest = Better(scan.largest, one);
    if (Better(scan.allowed, one).id == id && !Banned(row, id)) scan.allowed = one;
  }
  return scan;
}

// weights[i] = exp((logits[i] - shift) / divisor), and their sum in the order of gemm.h's sixteen lanes, for thread 0.
// `piece` is shared memory.
__device__ float Exponentials(const float* logits, std::int64_t size, float shift, float divisor, float* weights,
                              float* piece) {
  const int thread = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (std::int64_t first = 0; first < size; first += kPieceFloats) {
    const int count = static_cast<int>(std::min<std::int64_t>(size - first, kPieceFloats));
    for (int i = thread; i < count; i += kThreads) {
      piece[i] = weights[first + i] = Exp((logits[first + i] - shift) / divisor);
    }
    __syncthreads();
    if (thread < kLaneCount) {
#pragma unroll 8
      for (int i = thread; i < count; i += kLaneCount) sum += piece[i];
    }
    __syncthreads();  // the piece is overwritten
  }
  return thread < kLaneCount ? SumSixteen(0xffffu, sum) : 0.0f;
}

__device__ double SumOfRun(const float* weights, std::int64_t size, std::int64_t run) {
  const std::int64_t last = std::min(size, (run + 1) * kCdfRun);
  double sum = 0;
#pragma unroll 8
  for (std::int64_t id = run * kCdfRun; id < last; ++id) sum += weights[id];
  return sum;
}

// As in sample_host.cc, with the sums of the runs at hand. By one thread.
__device__ std::int64_t InverseCdf(const float* weights, std::int64_t size, const double* sums, double uniform) {
  const std::int64_t runs = SampleSums(size);
  double total = 0;
  for (std::int64_t run = 0; run < runs; ++run) total += sums[run];
  double before = 0;
  for (std::int64_t run = 0; run < runs; ++run) {
    if (before + sums[run] > uniform * total) {
      double sum = 0;
      for (std::int64_t id = run * kCdfRun;; ++id) {
        sum += weights[id];
        if (before + sum > uniform * total) return id;
      }
    }
    before += sums[run];
  }
  for (std::int64_t id = size - 1; id > 0; --id) {
    if (weights[id] > 0) return id;
  }
  return 0;
}

}  // namespace
}  // namespace cuda_internal

namespace kernel {

using namespace cuda_internal;

__global__ void __launch_bounds__(kThreads)
    Sample(const SampleRow* rows, std::int64_t size, float* all_weights, double* all_sums, TokenLogprob* tokens) {
  __shared__ Best best_of_warps[kThreads / 32];
  __shared__ float piece[kPieceFloats];
  const SampleRow& row = rows[blockIdx.x];
  float* const weights = all_weights + blockIdx.x * SampleWeights(size);
  double* const sums = all_sums + blockIdx.x * SampleSums(size);
  const int thread = static_cast<int>(threadIdx.x);

  const Scan scan = ScanLogits(row, size);
  const Best not_finite = BestOfBlock(scan.finite ? Best{0, -1} : Best{0, 0}, best_of_warps);
  if (not_finite.id >= 0) {
    if (thread == 0) tokens[blockIdx.x] = {-1, 0};
    return;
  }
  const Best largest = BestOfBlock(scan.largest, best_of_warps);
  const Best allowed = BestOfBlock(scan.allowed, best_of_warps);
  const float normaliser = Exponentials(row.logits, size, largest.logit, 1.0f, weights, piece);
  const Best chosen = allowed.id >= 0 ? allowed : largest;  // unless every token is banned
  std::int64_t id = row.given >= 0 ? row.given : chosen.id;
  if (row.given < 0 && row.temperature > 0) {
    if (row.temperature != 1 || chosen.logit != largest.logit) {
      Exponentials(row.logits, size, chosen.logit, row.temperature, weights, piece);
    }
    __syncthreads();
    for (std::int64_t i = thread; allowed.id >= 0 && i < row.banned_count; i += kThreads) {
      if (row.banned[i] >= 0 && row.banned[i] < size) weights[row.banned[i]] = 0;
    }
    __syncthreads();
    for (std::int64_t run = thread; run < SampleSums(size); run += kThreads) sums[run] = SumOfRun(weights, size, run);
    __syncthreads();
    if (thread == 0) id = InverseCdf(weights, size, sums, row.uniform);
  }
  if (thread != 0) return;
  tokens[blockIdx.x] = {static_cast<std::int32_t>(id),
                        static_cast<float>(static_cast<double>(row.logits[id]) - static_cast<double>(largest.logit) -
                                           std::log(static_cast<double>(normaliser)))};
}

}  // namespace kernel

Status SampleOnDevice(const SampleRow* rows, std::int64_t count, std::int64_t size, float* weights, double* sums,
                      TokenLogprob* tokens, StreamHandle stream) {
  return LaunchOn<kernel::Sample>(stream, "Sample", count, cuda_internal::kThreads, rows, size, weights, sums, tokens);
}

}  // namespace bascule
