// Groups slices into buckets: whole slices, at aligned offsets, never above the limit.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "bridge/plan/plan.h"

namespace bascule {

struct RoutedSlice {
  Route route;
  std::int32_t engine_row = 0;
  Slice slice;  // without its payload_offset
};

class BucketFiller {
 public:
  // `routes`: of all slices to come, sorted, each once.
  BucketFiller(std::vector<Route> routes, std::int64_t bucket_bytes);

  // Slices come in the engine's tensor order; one alone, or the same for several engine ranks, from one sending rank.
  // What comes alone shares buckets with what goes the same route alone; what comes for several fills twins, one bucket
  // for each of them, with what comes for the same ones. A slice that continues the last one of its bucket, in the
  // sender's tensor and in the same row of the engine's, becomes a part of it where the bucket has the room.
  void Add(std::span<RoutedSlice> slices);

  // What comes from here on shares no bucket with what came before.
  void CloseBuckets();

  // Sets routes, buckets and payload_bytes. Buckets are in the engine's tensor order, twins next to each other; those
  // that begin with the same tensor alternate between routes.
  void MoveInto(Plan& plan);

 private:
  using Twins = std::vector<Bucket>;  // one, or one for each of several engine ranks
  struct Lane {
    std::vector<std::int32_t> routes;
    std::vector<std::int32_t> last_rows;  // of the engine ranks
    std::vector<Twins> buckets;
    bool closed = true;  // the last of them
  };

  Lane& LaneOf(std::span<const RoutedSlice> slices);
  void Open(Lane& lane) const;
  bool Join(Lane& lane, std::span<const RoutedSlice> slices) const;
  void AddBehind(Lane& lane, std::span<RoutedSlice> slices) const;

  std::vector<Route> routes_;
  const std::int64_t bucket_bytes_;
  std::vector<Lane> lanes_;                                   // first one for each route, then those of several
  std::map<std::vector<std::int32_t>, std::size_t> lane_of_;  // of several routes
  std::int64_t payload_bytes_ = 0;
};

}  // namespace bascule
