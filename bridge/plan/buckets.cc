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

struct OrderedTwins {
  std::int32_t first_tensor = 0;
  std::int32_t turn = 0;  // how many buckets of the lane began with this tensor before
  std::int32_t lane = 0;
  std::vector<Bucket> twins;
};

}  // namespace

BucketFiller::BucketFiller(std::vector<Route> routes, std::int64_t bucket_bytes)
    : routes_(std::move(routes)), bucket_bytes_(bucket_bytes), lanes_(routes_.size()) {
  for (std::size_t route = 0; route < routes_.size(); ++route) {
    lanes_[route].routes = {static_cast<std::int32_t>(route)};
    lanes_[route].last_rows.resize(1);
  }
}

BucketFiller::Lane& BucketFiller::LaneOf(std::span<const RoutedSlice> slices) {
  const auto index_of = [this](const RoutedSlice& slice) {
    return static_cast<std::int32_t>(std::ranges::lower_bound(routes_, slice.route) - routes_.begin());
  };
  if (slices.size() == 1) return lanes_[static_cast<std::size_t>(index_of(slices.front()))];
  std::vector<std::int32_t> routes;
  for (const RoutedSlice& slice : slices) routes.push_back(index_of(slice));
  const auto [lane, is_new] = lane_of_.try_emplace(std::move(routes), lanes_.size());
  if (is_new) lanes_.push_back({.routes = lane->first, .last_rows = std::vector<std::int32_t>(slices.size())});
  return lanes_[lane->second];
}

void BucketFiller::Add(std::span<RoutedSlice> slices) {
  Lane& lane = LaneOf(slices);
  payload_bytes_ += slices.front().slice.payload_bytes * std::ssize(slices);
  const bool joined = Join(lane, slices);
  for (std::size_t i = 0; i < slices.size(); ++i) lane.last_rows[i] = slices[i].engine_row;
  if (joined) return;
  if (lane.closed) Open(lane);
  AddBehind(lane, slices);
}

// All of them or none, so that twins stay alike.
bool BucketFiller::Join(Lane& lane, std::span<const RoutedSlice> slices) const {
  if (lane.closed) return false;
  Twins& last = lane.buckets.back();
  if (last.front().payload_bytes + slices.front().slice.payload_bytes > bucket_bytes_) return false;
  std::vector<Slice> joined;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (lane.last_rows[i] != slices[i].engine_row) return false;
    const std::optional<Slice> one = Joined(last[i].slices.back(), slices[i].slice);
    if (!one) return false;
    joined.push_back(*one);
  }
  for (std::size_t i = 0; i < slices.size(); ++i) {
    last[i].slices.back() = joined[i];
    last[i].payload_bytes += slices[i].slice.payload_bytes;
  }
  return true;
}

void BucketFiller::CloseBuckets() {
  for (Lane& lane : lanes_) lane.closed = true;
}

void BucketFiller::Open(Lane& lane) const {
  Twins& twins = lane.buckets.emplace_back();
  for (const std::int32_t route : lane.routes) twins.push_back({.route = route, .slices = {}, .payload_bytes = 0});
  lane.closed = false;
}

void BucketFiller::AddBehind(Lane& lane, std::span<RoutedSlice> slices) const {
  const std::int64_t bytes = slices.front().slice.payload_bytes;
  std::int64_t offset = RoundUp(lane.buckets.back().front().payload_bytes, kSliceAlignment);
  if (offset + bytes > bucket_bytes_) {
    Open(lane);
    offset = 0;
  }
  for (std::size_t i = 0; i < slices.size(); ++i) {
    Bucket& bucket = lane.buckets.back()[i];
    slices[i].slice.payload_offset = offset;
    bucket.payload_bytes = offset + bytes;
    bucket.slices.push_back(std::move(slices[i].slice));
  }
}

void BucketFiller::MoveInto(Plan& plan) {
  std::vector<OrderedTwins> ordered;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    const auto lane = static_cast<std::int32_t>(l);
    for (Twins& twins : lanes_[l].buckets) {
      const std::int32_t first_tensor = twins.front().slices.front().tensor;
      const bool again = !ordered.empty() && ordered.back().lane == lane && ordered.back().first_tensor == first_tensor;
      const std::int32_t turn = again ? ordered.back().turn + 1 : 0;
      ordered.push_back({first_tensor, turn, lane, std::move(twins)});
    }
    std::vector<Twins>().swap(lanes_[l].buckets);
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const OrderedTwins& a, const OrderedTwins& b) {
    return std::tie(a.first_tensor, a.turn, a.lane) < std::tie(b.first_tensor, b.turn, b.lane);
  });
  plan.buckets.clear();
  plan.buckets.reserve(ordered.size());
  for (OrderedTwins& entry : ordered) {
    for (Bucket& bucket : entry.twins) plan.buckets.push_back(std::move(bucket));
  }
  plan.routes = std::move(routes_);
  plan.payload_bytes = payload_bytes_;
}

}  // namespace bascule
