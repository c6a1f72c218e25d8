#include "bridge/plan/twins.h"

#include <algorithm>

namespace bascule {
namespace {

// What the engine does with them may differ, and which of them counts.
bool SamePayload(const Slice& a, const Slice& b) {
  return a.tensor == b.tensor && a.logical_box == b.logical_box && a.sender_tensor == b.sender_tensor &&
         a.sender_box == b.sender_box && a.conversion == b.conversion && a.payload_offset == b.payload_offset &&
         a.payload_bytes == b.payload_bytes;
}

const Route& RouteOf(const Plan& plan, const Bucket& bucket) {
  return plan.routes[static_cast<std::size_t>(bucket.route)];
}

// Twins come in the order of their engine ranks.
bool AreTwins(const Plan& plan, const Bucket& a, const Bucket& b) {
  return RouteOf(plan, a).sender_rank == RouteOf(plan, b).sender_rank &&
         RouteOf(plan, a).engine_rank < RouteOf(plan, b).engine_rank &&
         std::ranges::equal(a.slices, b.slices, SamePayload);
}

}  // namespace

std::uint32_t CountTwins(const Plan& plan, std::uint32_t first) {
  std::uint32_t end = first + 1;
  while (end < plan.buckets.size() && AreTwins(plan, plan.buckets[end - 1], plan.buckets[end])) ++end;
  return end - first;
}

}  // namespace bascule
