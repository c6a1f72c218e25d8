// Groups slices into buckets: whole slices, at aligned offsets, never above the limit.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "bridge/plan/plan.h"

namespace bascule {

class BucketFiller {
 public:
  // `routes`: of all slices to come, sorted, each once.
  BucketFiller(std::vector<Route> routes, std::int64_t bucket_bytes);

  // Slices come in the engine's tensor order, without their payload_offset. One that continues the last slice of its
  // route, in the sender's tensor and in the same row of the engine's, becomes a part of it where the bucket has the
  // room.
  void Add(const Route& route, std::int32_t engine_row, Slice slice);

  // What comes from here on shares no bucket with what came before.
  void CloseBuckets();

  // Sets routes, buckets and payload_bytes. Buckets are in the engine's tensor order; those that begin with the same
  // tensor alternate between routes.
  void MoveInto(Plan& plan);

 private:
  void AddBehind(std::vector<Bucket>& buckets, Slice slice) const;

  std::vector<Route> routes_;
  const std::int64_t bucket_bytes_;
  std::vector<std::vector<Bucket>> buckets_;  // per route
  std::vector<std::int32_t> last_row_;        // of the engine rank, per route
  std::vector<bool> closed_;                  // the last bucket, per route
  std::int64_t payload_bytes_ = 0;
};

}  // namespace bascule
