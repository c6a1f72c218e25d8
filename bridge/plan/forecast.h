// Stage: plan (layout -> [plan] -> bucket -> transport)
//
// What a plan will cost before a byte moves: bytes of every route and rank, memory and stall of every flip mode, and
// the least time that links allow. Bounds, not promises: a sync that shares its links or its cores takes longer.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "bridge/plan/plan.h"

namespace bascule {

// Bytes a second, all above zero.
struct Speeds {
  std::int64_t link = 48'000'000'000;    // of one rank, in one direction
  std::int64_t memory = 10'000'000'000;  // of one engine rank's memory, copied
};

struct RouteForecast {
  Route route;
  std::int64_t bytes = 0;
  std::int64_t buckets = 0;
  std::int64_t slices = 0;
};

struct FlipForecast {
  std::string_view mode;          // as `bascule engine` has it
  std::int64_t device_bytes = 0;  // beside the live slot, on the engine rank that needs most
  std::int64_t host_bytes = 0;    // of the same rank, for the way back
  double stall_seconds = 0;       // 0: exchange of pointers, which bytes do not lengthen
  std::string_view stall;         // what decoding waits for
  std::string_view way_back;
  std::string_view guarantee;
};

struct Forecast {
  std::vector<RouteForecast> routes;        // as Plan::routes
  std::vector<std::int64_t> trainer_bytes;  // sent, per trainer rank that the plan names or that is below one
  std::vector<std::int64_t> engine_bytes;   // received, per engine rank
  std::int64_t slot_bytes = 0;              // of the engine rank with the largest slot
  std::int64_t frames_bytes = 0;            // in flight towards the engine rank with most routes
  double transfer_seconds = 0;              // of the busiest rank at Speeds::link
  std::vector<FlipForecast> flips;
};

// `plan` is one for `engine`. `credits`: buckets in flight on a route.
Forecast ForecastOf(const Plan& plan, const Layout& engine, std::int64_t bucket_bytes, std::int32_t credits,
                    const Speeds& speeds);

}  // namespace bascule
