// Groups slices into buckets: whole slices, at aligned offsets, never above the limit.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <cstdint>
#include <vector>

#include "bridge/plan/plan.h"

namespace bascule {

struct RoutedSlice {
  Route route;
  Slice slice;  // without its payload_offset
};

// Sets routes, buckets and payload_bytes of `plan`. `slices` are in the engine's tensor order and so are, route by
// route, the buckets; buckets that begin with the same tensor alternate between routes.
void FillBuckets(std::vector<RoutedSlice> slices, std::int64_t bucket_bytes, Plan& plan);

}  // namespace bascule
