#include "bridge/plan/projection.h"

namespace bascule {

Plan ProjectionOf(Plan plan, std::int32_t rank) {
  for (Bucket& bucket : plan.buckets) {
    if (plan.routes[static_cast<std::size_t>(bucket.route)].sender_rank != rank)
      std::vector<Slice>().swap(bucket.slices);
  }
  return plan;
}

std::int64_t SliceMemory(const Plan& plan) {
  std::int64_t slices = 0;
  for (const Bucket& bucket : plan.buckets) slices += static_cast<std::int64_t>(bucket.slices.capacity());
  return slices * static_cast<std::int64_t>(sizeof(Slice));
}

}  // namespace bascule
