// The memory of key/value state, in pages of a fixed pool on every engine rank. A page holds `page_tokens` tokens, in
// every layer and each KV head of its rank, as fp32: recomputed state is equal to the bit. A page has one number on all
// ranks. Who may use which page is KvPages' matter.
//
// Thread-safety: thread-compatible; the memory belongs to the step that runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

// Where the state of one KV head of one layer lies within a page; neither pool nor pages.
KvHeadView KvHeadOf(const KvShape& shape, std::int64_t layer, std::int64_t kv_head);

class KvCache {
 public:
  // ResourceExhausted "kv_memory"
  static Result<std::unique_ptr<KvCache>> Create(const KvShape& shape, std::int64_t pages);

  // The state in page `from`, of every rank, goes to page `to` as well.
  void CopyPage(std::int32_t from, std::int32_t to);
  // One KV head of one layer on one rank, for a request whose state is in `pages`.
  KvHeadView Head(int rank, std::int64_t layer, std::int64_t kv_head, const std::int32_t* pages);

  std::int64_t pages() const { return pages_; }
  std::int64_t page_tokens() const { return shape_.page_tokens; }

 private:
  KvCache(const KvShape& shape, std::int64_t pages, std::vector<FloatBuffer> pools);

  const KvShape shape_;
  const std::int64_t pages_;
  std::vector<FloatBuffer> pools_;  // one a rank
};

}  // namespace bascule
