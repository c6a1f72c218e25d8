#include "engine_side/decode/kv_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/checked_math.h"

namespace bascule {

std::optional<std::int64_t> KvShape::PageFloats() const {
  const std::int64_t factors[] = {layers, kv_heads, page_tokens, head_size + PaddedHead(head_size)};
  return CheckedProduct(factors);
}

Result<std::unique_ptr<KvCache>> KvCache::Create(const KvShape& shape, std::int64_t pages) {
  const Status no_memory =
      Status::ResourceExhausted("kv_memory", fmt::format("pages={} page_tokens={}", pages, shape.page_tokens));
  const std::optional<std::int64_t> page_floats = shape.PageFloats();
  if (!page_floats || pages < 1 || pages > std::numeric_limits<std::int32_t>::max()) return no_memory;
  const std::optional<std::int64_t> floats = CheckedMul(*page_floats, pages);
  if (!floats) return no_memory;
  std::vector<FloatBuffer> pools;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    Result<FloatBuffer> pool = FloatBuffer::Allocate(*floats);
    if (!pool.ok()) return no_memory;
    pools.push_back(std::move(pool).value());
  }
  return std::unique_ptr<KvCache>(new KvCache(shape, pages, std::move(pools)));
}

KvCache::KvCache(const KvShape& shape, std::int64_t pages, std::vector<FloatBuffer> pools)
    : shape_(shape), pages_(pages), pools_(std::move(pools)) {}

void KvCache::CopyPage(std::int32_t from, std::int32_t to) {
  const std::int64_t floats = *shape_.PageFloats();
  for (FloatBuffer& pool : pools_) std::copy_n(pool.data() + from * floats, floats, pool.data() + to * floats);
}

KvHeadView KvHeadOf(const KvShape& shape, std::int64_t layer, std::int64_t kv_head) {
  const std::int64_t key_floats = shape.page_tokens * shape.head_size;
  const std::int64_t head_floats = key_floats + shape.page_tokens * PaddedHead(shape.head_size);
  const std::int64_t offset = (layer * shape.kv_heads + kv_head) * head_floats;
  return {.page_floats = shape.layers * shape.kv_heads * head_floats,
          .page_tokens = shape.page_tokens,
          .key_offset = offset,
          .value_offset = offset + key_floats,
          .head_size = shape.head_size};
}

KvHeadView KvCache::Head(int rank, std::int64_t layer, std::int64_t kv_head, const std::int32_t* pages) {
  KvHeadView head = KvHeadOf(shape_, layer, kv_head);
  head.pool = pools_[static_cast<std::size_t>(rank)].data();
  head.pages = pages;
  return head;
}

}  // namespace bascule
