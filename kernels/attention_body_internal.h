// Attention over any F32x16; see gemm_body_internal.h for the rules.
#pragma once

#include "kernels/elementwise_body_internal.h"
#include "kernels/exact_internal.h"

namespace bascule::exact_internal {

template <class V>
inline const float* KeyGroup(const KvHeadView& c, std::int64_t position) {
  const std::int64_t group = position % c.page_tokens / kKvGroup;
  return c.pool + c.pages[position / c.page_tokens] * c.page_floats + c.key_offset + group * c.head_size * kKvGroup;
}
template <class V>
inline const float* ValueRow(const KvHeadView& c, std::int64_t position) {
  return c.pool + c.pages[position / c.page_tokens] * c.page_floats + c.value_offset +
         position % c.page_tokens * PaddedHead(c.head_size);
}

// Scores of kHeads query heads for the 16 positions from `position` on.
template <class V, int kHeads>
inline void ScoreGroup(const AttentionProblem& p, std::int64_t head, std::int64_t position, V (&scores)[kHeads]) {
  const std::int64_t size = p.cache.head_size;
  const float* keys = KeyGroup<V>(p.cache, position);
  const float* query = p.query + head * size;
  V sums[kHeads][4];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) sums[h][0] = sums[h][1] = sums[h][2] = sums[h][3] = V::Zero();
  std::int64_t d = 0;
  for (; d + 4 <= size; d += 4) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const V key = V::Load(keys + (d + j) * kKvGroup);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) sums[h][j] = Fma(V::Of(query[h * size + d + j]), key, sums[h][j]);
    }
  }
  for (; d < size; ++d) {
    const V key = V::Load(keys + d * kKvGroup);
    for (int h = 0; h < kHeads; ++h) sums[h][d % 4] = Fma(V::Of(query[h * size + d]), key, sums[h][d % 4]);
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    scores[h] = Mul(Add(Add(sums[h][0], sums[h][1]), Add(sums[h][2], sums[h][3])), V::Of(p.scale));
  }
}

// Weighted sum of the values' elements [16 * chunk, 16 * (chunk + kChunks)) for kHeads heads.
template <class V, int kHeads, int kChunks>
inline void MixValues(const AttentionProblem& p, std::int64_t head, std::int64_t chunk, const float* weights,
                      std::int64_t weight_stride, const V (&totals)[kHeads]) {
  V sums[kHeads][kChunks];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int c = 0; c < kChunks; ++c) sums[h][c] = V::Zero();
  }
  const std::int64_t row_floats = PaddedHead(p.cache.head_size);
  for (std::int64_t group = 0; group < p.positions; group += kKvGroup) {
    const std::int64_t count = p.positions - group < kKvGroup ? p.positions - group : kKvGroup;
    const float* values = ValueRow<V>(p.cache, group) + 16 * chunk;
    for (std::int64_t t = 0; t < count; ++t) {
#pragma GCC unroll 4
      for (int c = 0; c < kChunks; ++c) {
        const V value = V::Load(values + t * row_floats + 16 * c);
#pragma GCC unroll 4
        for (int h = 0; h < kHeads; ++h) {
          sums[h][c] = Fma(V::Of(weights[h * weight_stride + group + t]), value, sums[h][c]);
        }
      }
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    float* out = p.out + (head + h) * p.cache.head_size;
    for (int c = 0; c < kChunks; ++c) {
      const std::int64_t at = 16 * (chunk + c);
      StoreFirst(Div(sums[h][c], totals[h]), p.cache.head_size - at, out + at);
    }
  }
}

template <class V, int kHeads>
inline void AttendHeads(const AttentionProblem& p, std::int64_t head) {
  constexpr float kMasked = -__builtin_inff();
  const std::int64_t stride = (p.positions + kKvGroup - 1) / kKvGroup * kKvGroup;
  V largest[kHeads], totals[kHeads];
  for (int h = 0; h < kHeads; ++h) largest[h] = V::Of(kMasked);
  for (std::int64_t t = 0; t < p.positions; t += kKvGroup) {
    V scores[kHeads];
    ScoreGroup<V, kHeads>(p, head, t, scores);
    for (int h = 0; h < kHeads; ++h) {
      if (p.positions - t < kKvGroup) scores[h] = FirstLanes(scores[h], static_cast<int>(p.positions - t), kMasked);
      largest[h] = Max(largest[h], scores[h]);
      scores[h].Store(p.scratch + h * stride + t);
    }
  }
  for (int h = 0; h < kHeads; ++h) {
    float* row = p.scratch + h * stride;
    totals[h] = V::Of(Exponentials<V>(row, p.positions, MaxLane(largest[h]), 1.0f, row));
  }
  const std::int64_t chunks = PaddedHead(p.cache.head_size) / 16;
  std::int64_t chunk = 0;
  for (; chunk + 4 <= chunks; chunk += 4) MixValues<V, kHeads, 4>(p, head, chunk, p.scratch, stride, totals);
  for (; chunk < chunks; ++chunk) MixValues<V, kHeads, 1>(p, head, chunk, p.scratch, stride, totals);
}

template <class V>
void Attention(const AttentionProblem& p) {
  std::int64_t head = 0;
  for (; head + kHeadsAtOnce <= p.heads; head += kHeadsAtOnce) AttendHeads<V, kHeadsAtOnce>(p, head);
  switch (p.heads - head) {
    case 3:
      return AttendHeads<V, 3>(p, head);
    case 2:
      return AttendHeads<V, 2>(p, head);
    case 1:
      return AttendHeads<V, 1>(p, head);
    default:
      return;
  }
}

}  // namespace bascule::exact_internal
