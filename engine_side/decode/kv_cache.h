// The key/value state of all running requests, in pages of a fixed pool on every engine rank. A page holds
// `page_tokens` tokens of one request, in every layer and each KV head of its rank, as fp32: recomputed state is equal
// to the bit. Pages are reserved for a request as a whole, under one number on all ranks, and come back as a whole.
//
// Thread-safety: pages are reserved and released under the engine's lock; the memory belongs to the step that runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine_side/decode/float_buffer.h"
#include "kernels/attention.h"

namespace bascule {

struct KvShape {
  std::int64_t layers = 0;
  std::int64_t kv_heads = 0;  // of one engine rank
  std::int64_t head_size = 0;
  std::int64_t page_tokens = 0;  // a multiple of kKvGroup
  int ranks = 1;
  // Floats of one page of one rank; no value when they overflow.
  std::optional<std::int64_t> PageFloats() const;
};

class KvCache {
 public:
  // ResourceExhausted "kv_memory"
  static Result<std::unique_ptr<KvCache>> Create(const KvShape& shape, std::int64_t pages);

  std::int64_t PagesFor(std::int64_t tokens) const { return (tokens + shape_.page_tokens - 1) / shape_.page_tokens; }
  // No value when fewer are free.
  std::optional<std::vector<std::int32_t>> Reserve(std::int64_t pages);
  void Release(std::span<const std::int32_t> pages);

  // One KV head of one layer on one rank, for the request that holds `pages`.
  KvHeadView Head(int rank, std::int64_t layer, std::int64_t kv_head, const std::int32_t* pages);

  std::int64_t pages_total() const { return pages_total_; }
  std::int64_t pages_used() const { return pages_total_ - static_cast<std::int64_t>(free_.size()); }

 private:
  KvCache(const KvShape& shape, std::int64_t pages, std::vector<FloatBuffer> pools);

  const KvShape shape_;
  const std::int64_t pages_total_;
  std::vector<FloatBuffer> pools_;  // one a rank
  std::vector<std::int32_t> free_;
};

}  // namespace bascule
