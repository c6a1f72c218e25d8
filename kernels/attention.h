// Attention of one query position over a paged key/value cache, for the query heads that share one KV head.
//
// A page holds kKvGroup-token groups of one KV head's keys, transposed so that one vector holds one element of 16
// tokens, and its values, a row a token:
//
//   key(token t, element d)   at key_offset   + (t / 16 * head_size + d) * 16 + t % 16
//   value(token t, element d) at value_offset + t * PaddedHead(head_size) + d
//
// with t the token's place in its page. What lies beyond `positions` is never used, whatever its bits.
//
// Numerics: a score is four partial sums (element d in sum d mod 4, fused, rising), (s0 + s1) + (s2 + s3), times
// `scale`; exponentials relative to the largest score are summed in 16 lanes (position p in lane p mod 16) and the tree
// of gemm.h; an output element is one fused sum over positions, rising, divided by that. The order depends on head_size
// and `positions` only: not on pages, or on how the cache was filled.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace bascule {

inline constexpr std::int64_t kKvGroup = 16;  // page sizes are multiples of it

constexpr std::int64_t PaddedHead(std::int64_t head_size) { return (head_size + 15) / 16 * 16; }

// Where the keys and values of one KV head of one layer lie.
struct KvHeadView {
  float* pool = nullptr;
  const std::int32_t* pages = nullptr;  // page table: pages[p / page_tokens] holds position p
  std::int64_t page_floats = 0;         // from one page to the next
  std::int64_t page_tokens = 0;
  std::int64_t key_offset = 0;    // in a page
  std::int64_t value_offset = 0;  // in a page
  std::int64_t head_size = 0;
};

// Writes the key and the value of `position`; pads the value's row with zeros.
void StoreKvOnHost(const KvHeadView& cache, std::int64_t position, const float* key, const float* value);

struct AttentionProblem {
  KvHeadView cache;
  std::int64_t positions = 0;    // >= 1: attends to positions [0, positions)
  std::int64_t heads = 0;        // query heads of this KV head
  const float* query = nullptr;  // heads * head_size
  float scale = 0;
  float* out = nullptr;      // heads * head_size
  float* scratch = nullptr;  // AttentionScratch(positions) floats, 64-byte aligned
};

std::int64_t AttentionScratch(std::int64_t positions);
void AttentionOnHost(const AttentionProblem& problem, Isa isa = BestIsa());

}  // namespace bascule

// Roofline, per position and KV head: 4 * head_size bytes of keys and as many of values, read once for every four query
// heads; for each of those heads two multiply-adds an element, and one exponential.
