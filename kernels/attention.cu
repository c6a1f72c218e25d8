// A block does one problem, four query heads at a time. For the scores a thread has a position, so that sixteen
// neighbours read one line of transposed keys; for the mix a thread has an element of a head, so that neighbours read
// neighbouring values. Each thread keeps the order of attention.h within what it has.
#include <algorithm>

#include "kernels/attention_device.h"
#include "kernels/cuda/lane.h"

namespace bascule {
namespace cuda_internal {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kHeads = exact_internal::kHeadsAtOnce;
constexpr float kMasked = -__builtin_inff();

__device__ float* PageOf(const KvHeadView& cache, std::int64_t position) {
  return cache.pool + cache.pages[position / cache.page_tokens] * cache.page_floats;
}

// Of `heads` <= kHeads heads from `query` on, for one position.
__device__ void Scores(const AttentionProblem& p, const float* query, int heads, std::int64_t position,
                       float (&scores)[kHeads]) {
  const std::int64_t size = p.cache.head_size, token = position % p.cache.page_tokens;
  const float* const keys =
      PageOf(p.cache, position) + p.cache.key_offset + token / kKvGroup * size * kKvGroup + token % kKvGroup;
  float sums[kHeads][4] = {};
  for (std::int64_t first = 0; first < size; first += 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (first + j >= size) continue;
      const float key = keys[(first + j) * kKvGroup];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (h < heads) sums[h][j] = __builtin_fmaf(query[h * size + first + j], key, sums[h][j]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) scores[h] = ((sums[h][0] + sums[h][1]) + (sums[h][2] + sums[h][3])) * p.scale;
}

// Makes each value the largest of its kind over the block. `shared` has room for kWarps of each.
__device__ void LargestOfBlock(float (&values)[kHeads], float (*shared)[kHeads]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, values[h], lanes);
      values[h] = values[h] > other ? values[h] : other;
    }
    if (lane == 0) shared[warp][h] = values[h];
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    for (int w = 0; w < kWarps; ++w) values[h] = values[h] > shared[w][h] ? values[h] : shared[w][h];
  }
}

// One element of one head's output: the weighted values, positions rising, over the sum of the weights.
__device__ float Mix(const AttentionProblem& p, const float* weights, std::int64_t element, float total) {
  const std::int64_t row_floats = PaddedHead(p.cache.head_size);
  float sum = 0;
  for (std::int64_t first = 0; first < p.positions; first += p.cache.page_tokens) {
    const float* const values = PageOf(p.cache, first) + p.cache.value_offset + element;
    const std::int64_t count = std::min(p.cache.page_tokens, p.positions - first);
#pragma unroll 8
    for (std::int64_t t = 0; t < count; ++t) sum = __builtin_fmaf(weights[first + t], values[t * row_floats], sum);
  }
  return sum / total;
}

// By a whole block.
__device__ void StoreOne(const KvStore& store) {
  const KvHeadView& cache = store.cache;
  const std::int64_t token = store.position % cache.page_tokens;
  float* const page = PageOf(cache, store.position);
  float* const keys = page + cache.key_offset + token / kKvGroup * cache.head_size * kKvGroup + token % kKvGroup;
  float* const values = page + cache.value_offset + token * PaddedHead(cache.head_size);
  for (std::int64_t d = threadIdx.x; d < PaddedHead(cache.head_size); d += kThreads) {
    const bool inside = d < cache.head_size;
    if (inside) keys[d * kKvGroup] = store.key[d];
    values[d] = inside ? store.value[d] : 0.0f;
  }
}

// By a whole block.
__device__ void Attend(const AttentionProblem& p) {
  __shared__ float largest_of_warps[kWarps][kHeads];
  __shared__ float totals[kHeads];
  const std::int64_t size = p.cache.head_size, stride = (p.positions + kKvGroup - 1) / kKvGroup * kKvGroup;
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t head = 0; head < p.heads; head += kHeads) {
    const int heads = static_cast<int>(std::min<std::int64_t>(p.heads - head, kHeads));
    float largest[kHeads] = {kMasked, kMasked, kMasked, kMasked};
    for (std::int64_t t = thread; t < p.positions; t += kThreads) {
      float scores[kHeads];
      Scores(p, p.query + head * size, heads, t, scores);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (h >= heads) continue;
        largest[h] = largest[h] > scores[h] ? largest[h] : scores[h];
        p.scratch[h * stride + t] = scores[h];
      }
    }
    LargestOfBlock(largest, largest_of_warps);
    for (std::int64_t t = thread; t < p.positions; t += kThreads) {  // those whose scores this thread wrote
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (h < heads) p.scratch[h * stride + t] = Exp(p.scratch[h * stride + t] - largest[h]);
      }
    }
    __syncthreads();
    if (thread < kHeads * kKvGroup) {  // sixteen lanes for each head
      const int h = thread / static_cast<int>(kKvGroup), lane = thread % static_cast<int>(kKvGroup);
      float sum = 0;
      for (std::int64_t t = lane; h < heads && t < p.positions; t += kKvGroup) sum += p.scratch[h * stride + t];
      sum = SumSixteen(0xffffffffu, sum);
      if (lane == 0) totals[h] = sum;
    }
    __syncthreads();
    for (std::int64_t i = thread; i < heads * size; i += kThreads) {
      const std::int64_t h = i / size;
      p.out[head * size + i] = Mix(p, p.scratch + h * stride, i - h * size, totals[h]);
    }
    __syncthreads();  // the scratch is the next heads'
  }
}

__device__ KvHeadView HeadOf(const PagedRows& cache, std::int64_t row, std::int64_t kv_head) {
  return {.pool = cache.pool,
          .pages = cache.page_tables + cache.first_page[row],
          .page_floats = cache.page_floats,
          .page_tokens = cache.page_tokens,
          .key_offset = cache.key_offset + kv_head * cache.head_floats,
          .value_offset = cache.value_offset + kv_head * cache.head_floats,
          .head_size = cache.head_size};
}

}  // namespace
}  // namespace cuda_internal

namespace kernel {

using namespace cuda_internal;

__global__ void __launch_bounds__(kThreads) StoreKv(const KvStore* stores) { StoreOne(stores[blockIdx.x]); }

__global__ void __launch_bounds__(kThreads) Attention(const AttentionProblem* problems) {
  Attend(problems[blockIdx.x]);
}

__global__ void __launch_bounds__(kThreads)
    StoreKvRows(PagedRows cache, const float* keys, const float* values, std::int64_t row_stride) {
  const std::int64_t row = blockIdx.x / cache.kv_heads, kv_head = blockIdx.x - row * cache.kv_heads;
  if (cache.positions[row] < 0) return;
  const std::int64_t at = row * row_stride + kv_head * cache.head_size;
  StoreOne({HeadOf(cache, row, kv_head), cache.positions[row], keys + at, values + at});
}

__global__ void __launch_bounds__(kThreads) AttentionOfRows(AttentionRows rows, std::int64_t first) {
  const PagedRows& cache = rows.cache;
  const std::int64_t problem = first + blockIdx.x;
  const std::int64_t row = problem / cache.kv_heads, kv_head = problem - row * cache.kv_heads;
  if (cache.positions[row] < 0) return;
  const std::int64_t at = kv_head * rows.heads * cache.head_size;
  Attend({.cache = HeadOf(cache, row, kv_head),
          .positions = std::int64_t{cache.positions[row]} + 1,
          .heads = rows.heads,
          .query = rows.query + row * rows.query_stride + at,
          .scale = rows.scale,
          .out = rows.out + row * rows.out_stride + at,
          .scratch = rows.scratch + blockIdx.x * rows.scratch_floats});
}

}  // namespace kernel

Status StoreKvOnDevice(const KvStore* stores, std::int64_t count, StreamHandle stream) {
  return LaunchOn<kernel::StoreKv>(stream, "StoreKv", count, cuda_internal::kThreads, stores);
}

Status AttentionOnDevice(const AttentionProblem* problems, std::int64_t count, StreamHandle stream) {
  return LaunchOn<kernel::Attention>(stream, "Attention", count, cuda_internal::kThreads, problems);
}

Status StoreKvRowsOnDevice(const PagedRows& cache, const float* keys, const float* values, std::int64_t row_stride,
                           std::int64_t rows, StreamHandle stream) {
  return LaunchOn<kernel::StoreKvRows>(stream, "StoreKvRows", rows * cache.kv_heads, cuda_internal::kThreads, cache,
                                       keys, values, row_stride);
}

Status AttentionRowsOnDevice(const AttentionRows& rows, std::int64_t first, std::int64_t count, StreamHandle stream) {
  return LaunchOn<kernel::AttentionOfRows>(stream, "AttentionOfRows", count, cuda_internal::kThreads, rows, first);
}

}  // namespace bascule
