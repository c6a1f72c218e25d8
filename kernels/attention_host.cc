#include "kernels/attention.h"

#include "base/status.h"
#include "kernels/exact_internal.h"

namespace bascule {

void StoreKvOnHost(const KvHeadView& cache, std::int64_t position, const float* key, const float* value) {
  float* page = cache.pool + cache.pages[position / cache.page_tokens] * cache.page_floats;
  const std::int64_t token = position % cache.page_tokens;
  float* keys = page + cache.key_offset + token / kKvGroup * cache.head_size * kKvGroup + token % kKvGroup;
  float* values = page + cache.value_offset + token * PaddedHead(cache.head_size);
  for (std::int64_t d = 0; d < cache.head_size; ++d) {
    keys[d * kKvGroup] = key[d];
    values[d] = value[d];
  }
  for (std::int64_t d = cache.head_size; d < PaddedHead(cache.head_size); ++d) values[d] = 0;
}

std::int64_t AttentionScratch(std::int64_t positions) {
  return exact_internal::kHeadsAtOnce * ((positions + kKvGroup - 1) / kKvGroup * kKvGroup);
}

void AttentionOnHost(const AttentionProblem& problem, Isa isa) {
  CHECK(problem.positions > 0 && problem.cache.page_tokens % kKvGroup == 0);
  exact_internal::KernelsOf(isa).attention(problem);
}

}  // namespace bascule
