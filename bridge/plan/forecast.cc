#include "bridge/plan/forecast.h"

#include <algorithm>

namespace bascule {
namespace {

std::vector<RouteForecast> RoutesOf(const Plan& plan) {
  std::vector<RouteForecast> routes;
  for (const Route& route : plan.routes) routes.push_back({.route = route});
  for (const Bucket& bucket : plan.buckets) {
    RouteForecast& route = routes[static_cast<std::size_t>(bucket.route)];
    ++route.buckets;
    route.slices += std::ssize(bucket.slices);
    for (const Slice& slice : bucket.slices) route.bytes += slice.payload_bytes;
  }
  return routes;
}

void AddTo(std::vector<std::int64_t>& totals, std::int32_t rank, std::int64_t bytes) {
  const auto index = static_cast<std::size_t>(rank);
  if (index >= totals.size()) totals.resize(index + 1);
  totals[index] += bytes;
}

std::int64_t Most(const std::vector<std::int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

std::int64_t LargestSlot(const Layout& engine) {
  std::int64_t most = 0;
  for (const RankLayout& rank : engine.ranks) {
    std::int64_t bytes = 0;
    for (const LocalTensor& tensor : rank.tensors) bytes += tensor.Bytes();
    most = std::max(most, bytes);
  }
  return most;
}

double SecondsFor(std::int64_t bytes, std::int64_t bytes_a_second) {
  return static_cast<double>(bytes) / static_cast<double>(bytes_a_second);
}

std::vector<FlipForecast> FlipsOf(std::int64_t slot_bytes, const Speeds& speeds) {
  constexpr std::string_view kShadow = "decoding never reads a byte that is written; all ranks flip between two steps";
  return {{.mode = "shadow",
           .device_bytes = slot_bytes,
           .host_bytes = 0,
           .stall_seconds = 0,
           .stall = "an exchange of pointers",
           .way_back = "the old slot, until the next session is accepted",
           .guarantee = kShadow},
          {.mode = "shadow --slots 3",
           .device_bytes = 2 * slot_bytes,
           .host_bytes = 0,
           .stall_seconds = 0,
           .stall = "an exchange of pointers",
           .way_back = "the old slot, always",
           .guarantee = kShadow},
          {.mode = "in_place",
           .device_bytes = 0,
           .host_bytes = slot_bytes,
           .stall_seconds = SecondsFor(2 * slot_bytes, speeds.memory),
           .stall = "an exchange of the whole slot with host memory, one copy in and one out",
           .way_back = "the slot in host memory, which then has the old version",
           .guarantee = "addresses stay; staged bytes are proven before, live bytes before the next step, or undone"}};
}

}  // namespace

Forecast ForecastOf(const Plan& plan, const Layout& engine, std::int64_t bucket_bytes, std::int32_t credits,
                    const Speeds& speeds) {
  Forecast forecast;
  forecast.routes = RoutesOf(plan);
  forecast.engine_bytes.resize(engine.ranks.size());
  std::vector<std::int64_t> routes_into(engine.ranks.size());
  for (const RouteForecast& route : forecast.routes) {
    AddTo(forecast.trainer_bytes, route.route.sender_rank, route.bytes);
    AddTo(forecast.engine_bytes, route.route.engine_rank, route.bytes);
    AddTo(routes_into, route.route.engine_rank, 1);
  }
  forecast.slot_bytes = LargestSlot(engine);
  forecast.frames_bytes = Most(routes_into) * credits * bucket_bytes;
  forecast.transfer_seconds =
      SecondsFor(std::max(Most(forecast.trainer_bytes), Most(forecast.engine_bytes)), speeds.link);
  forecast.flips = FlipsOf(forecast.slot_bytes, speeds);
  return forecast;
}

}  // namespace bascule
