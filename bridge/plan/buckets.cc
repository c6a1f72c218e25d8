#include "bridge/plan/buckets_internal.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/checked_math.h"

namespace bascule {
namespace {

// `first` and `second` as one box, where they touch in one dimension and are equal in all others.
std::optional<Box> Joined(const Box& first, const Box& second) {
  std::optional<int> touching;
  for (int d = 0; d < first.dims(); ++d) {
    if (first.offset[d] == second.offset[d] && first.extent[d] == second.extent[d]) continue;
    if (touching || first.offset[d] + first.extent[d] != second.offset[d]) return std::nullopt;
    touching = d;
  }
  if (!touching) return std::nullopt;
  Box joined = first;
  joined.extent[*touching] += second.extent[*touching];
  return joined;
}

// Nothing unless the join is the same elements in the same order on all three sides.
std::optional<Slice> Joined(const Slice& first, const Slice& second) {
  if (first.tensor != second.tensor || first.sender_tensor != second.sender_tensor ||
      first.engine_tensor != second.engine_tensor || first.conversion != second.conversion ||
      first.counts != second.counts) {
    return std::nullopt;
  }
  const std::optional<Box> logical = Joined(first.logical_box, second.logical_box);
  const std::optional<Box> sender = Joined(first.sender_box, second.sender_box);
  const std::optional<Box> engine = Joined(first.engine_box, second.engine_box);
  if (!logical || !sender || !engine || !SameElements(*logical, *sender) || !SameElements(*logical, *engine)) {
    return std::nullopt;
  }
  Slice joined = first;
  joined.logical_box = *logical;
  joined.sender_box = *sender;
  joined.engine_box = *engine;
  joined.payload_bytes += second.payload_bytes;
  return joined;
}

struct OrderedBucket {
  std::int32_t first_tensor = 0;
  std::int32_t turn = 0;  // how many buckets of the route began with this tensor before
  Bucket bucket;
};

}  // namespace

BucketFiller::BucketFiller(std::vector<Route> routes, std::int64_t bucket_bytes)
    : routes_(std::move(routes)),
      bucket_bytes_(bucket_bytes),
      buckets_(routes_.size()),
      last_row_(routes_.size()),
      closed_(routes_.size(), true) {}

void BucketFiller::Add(const Route& route, std::int32_t engine_row, Slice slice) {
  const auto index = static_cast<std::size_t>(std::ranges::lower_bound(routes_, route) - routes_.begin());
  std::vector<Bucket>& buckets = buckets_[index];
  payload_bytes_ += slice.payload_bytes;
  const bool same_row = !closed_[index] && last_row_[index] == engine_row;
  last_row_[index] = engine_row;
  if (same_row && buckets.back().payload_bytes + slice.payload_bytes <= bucket_bytes_) {
    Bucket& last = buckets.back();
    if (const std::optional<Slice> joined = Joined(last.slices.back(), slice)) {
      last.slices.back() = *joined;
      last.payload_bytes += slice.payload_bytes;
      return;
    }
  }
  if (closed_[index]) buckets.push_back({.route = static_cast<std::int32_t>(index), .slices = {}, .payload_bytes = 0});
  closed_[index] = false;
  AddBehind(buckets, std::move(slice));
}

void BucketFiller::CloseBuckets() { closed_.assign(routes_.size(), true); }

void BucketFiller::AddBehind(std::vector<Bucket>& buckets, Slice slice) const {
  std::int64_t offset = RoundUp(buckets.back().payload_bytes, kSliceAlignment);
  if (offset + slice.payload_bytes > bucket_bytes_) {
    buckets.push_back({.route = buckets.back().route, .slices = {}, .payload_bytes = 0});
    offset = 0;
  }
  slice.payload_offset = offset;
  buckets.back().payload_bytes = offset + slice.payload_bytes;
  buckets.back().slices.push_back(std::move(slice));
}

void BucketFiller::MoveInto(Plan& plan) {
  std::vector<OrderedBucket> ordered;
  for (std::vector<Bucket>& of_route : buckets_) {
    for (Bucket& bucket : of_route) {
      const std::int32_t first_tensor = bucket.slices.front().tensor;
      const bool again = !ordered.empty() && ordered.back().bucket.route == bucket.route &&
                         ordered.back().first_tensor == first_tensor;
      const std::int32_t turn = again ? ordered.back().turn + 1 : 0;
      ordered.push_back({first_tensor, turn, std::move(bucket)});
    }
    std::vector<Bucket>().swap(of_route);
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const OrderedBucket& a, const OrderedBucket& b) {
    return std::tie(a.first_tensor, a.turn, a.bucket.route) < std::tie(b.first_tensor, b.turn, b.bucket.route);
  });
  plan.buckets.clear();
  plan.buckets.reserve(ordered.size());
  for (OrderedBucket& entry : ordered) plan.buckets.push_back(std::move(entry.bucket));
  plan.routes = std::move(routes_);
  plan.payload_bytes = payload_bytes_;
}

}  // namespace bascule
