#include "bridge/plan/buckets_internal.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/checked_math.h"

namespace bascule {
namespace {

std::vector<Route> RoutesOf(const std::vector<RoutedSlice>& slices) {
  std::vector<Route> routes;
  for (const RoutedSlice& routed : slices) routes.push_back(routed.route);
  std::sort(routes.begin(), routes.end());
  routes.erase(std::unique(routes.begin(), routes.end()), routes.end());
  return routes;
}

// Fills the buckets of one route, in order.
class RouteFiller {
 public:
  explicit RouteFiller(std::int32_t route) : route_(route) {}

  void Add(Slice slice, std::int64_t bucket_bytes) {
    const std::int64_t offset = buckets_.empty() ? 0 : RoundUp(buckets_.back().payload_bytes, kSliceAlignment);
    if (buckets_.empty() || offset + slice.payload_bytes > bucket_bytes) {
      buckets_.push_back({.route = route_, .slices = {}, .payload_bytes = 0});
      slice.payload_offset = 0;
    } else {
      slice.payload_offset = offset;
    }
    Bucket& bucket = buckets_.back();
    bucket.payload_bytes = slice.payload_offset + slice.payload_bytes;
    bucket.slices.push_back(std::move(slice));
  }

  std::vector<Bucket>& buckets() { return buckets_; }

 private:
  std::int32_t route_;
  std::vector<Bucket> buckets_;
};

struct OrderedBucket {
  std::int32_t first_tensor = 0;
  std::int32_t turn = 0;  // how many buckets of the route began with this tensor before
  Bucket bucket;
};

std::vector<Bucket> InSendingOrder(std::vector<RouteFiller> fillers) {
  std::vector<OrderedBucket> ordered;
  for (RouteFiller& filler : fillers) {
    for (Bucket& bucket : filler.buckets()) {
      const std::int32_t first_tensor = bucket.slices.front().tensor;
      const bool again = !ordered.empty() && ordered.back().bucket.route == bucket.route &&
                         ordered.back().first_tensor == first_tensor;
      const std::int32_t turn = again ? ordered.back().turn + 1 : 0;
      ordered.push_back({first_tensor, turn, std::move(bucket)});
    }
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const OrderedBucket& a, const OrderedBucket& b) {
    return std::tie(a.first_tensor, a.turn, a.bucket.route) < std::tie(b.first_tensor, b.turn, b.bucket.route);
  });
  std::vector<Bucket> buckets;
  for (OrderedBucket& entry : ordered) buckets.push_back(std::move(entry.bucket));
  return buckets;
}

}  // namespace

void FillBuckets(std::vector<RoutedSlice> slices, std::int64_t bucket_bytes, Plan& plan) {
  plan.routes = RoutesOf(slices);
  std::vector<RouteFiller> fillers;
  std::map<Route, std::size_t> filler_of;
  for (const Route& route : plan.routes) {
    filler_of[route] = fillers.size();
    fillers.emplace_back(static_cast<std::int32_t>(fillers.size()));
  }
  plan.payload_bytes = 0;
  for (RoutedSlice& routed : slices) {
    plan.payload_bytes += routed.slice.payload_bytes;
    fillers[filler_of[routed.route]].Add(std::move(routed.slice), bucket_bytes);
  }
  plan.buckets = InSendingOrder(std::move(fillers));
}

}  // namespace bascule
