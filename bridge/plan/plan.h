// Stage: plan (layout -> [plan] -> bucket -> transport)
//
// Which bytes go from which sending rank to which engine rank, in which bucket. Data only; made by Planner, the same on
// both sides (they compare PlanDigest before the first bucket).
//
// Thread-safety: thread-compatible (values); read-only once made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "bridge/layout/layout.h"
#include "kernels/conversion.h"

namespace bascule {

// One sending rank to one engine rank.
struct Route {
  std::int32_t sender_rank = 0;
  std::int32_t engine_rank = 0;
  friend auto operator<=>(const Route&, const Route&) = default;
};

// The intersection of one sender row with one engine row (or a part of it, where it was cut to fit a bucket).
struct Slice {
  std::int32_t tensor = 0;  // index into Plan::tensors
  Box logical_box;
  std::int32_t sender_tensor = 0;  // index into the sending rank's tensors
  Box sender_box;
  std::int32_t engine_tensor = 0;  // index into the engine rank's tensors
  Box engine_box;
  Conversion conversion = Conversion::kNone;
  // Exactly one slice with `counts` covers each logical element: their digests add up to the tensor's. Further slices
  // of the same element are replicas; each is checked against its sender's digest all the same.
  bool counts = true;
  std::int64_t payload_offset = 0;  // in the bucket's payload, a multiple of kSliceAlignment
  std::int64_t payload_bytes = 0;
  friend bool operator==(const Slice&, const Slice&) = default;
};

inline constexpr std::int64_t kSliceAlignment = 64;

struct Bucket {
  std::int32_t route = 0;  // index into Plan::routes
  std::vector<Slice> slices;
  std::int64_t payload_bytes = 0;  // <= PlanOptions::bucket_bytes
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

// Four disjoint sets of logical names.
struct NameSets {
  std::vector<std::string> expected;    // the engine needs them and no sender has them
  std::vector<std::string> loaded;      // sent and consumed
  std::vector<std::string> ignored;     // the sender has them and an ignore pattern names them, or no scope does
  std::vector<std::string> unexpected;  // the sender has them and nobody knows them
  friend bool operator==(const NameSets&, const NameSets&) = default;
};

struct Plan {
  std::vector<TensorSpec> tensors;  // wire specs, in the engine's order
  std::vector<Route> routes;
  std::vector<Bucket> buckets;             // in sending order; a bucket's number is its index
  std::vector<std::string> scope = {};     // PlanOptions::scope
  std::vector<std::int32_t> carried = {};  // tensors outside it, ascending: no bucket has a part of them
  NameSets names;
  std::int64_t payload_bytes = 0;  // over all buckets, alignment gaps left out
  Hash256 sender_layout;
  Hash256 engine_layout;
  Hash256 digest;  // PlanDigest(*this), set by the planner
  friend bool operator==(const Plan&, const Plan&) = default;
};

// The engine keeps what it has of `tensor`, and carries it over into the version that the plan brings.
inline bool IsCarried(const Plan& plan, std::int32_t tensor) {
  return std::binary_search(plan.carried.begin(), plan.carried.end(), tensor);
}

// SHA-256 of a canonical encoding of everything above but `digest`.
Hash256 PlanDigest(const Plan& plan);

// A readable account: routes with bytes, buckets, the name sets.
std::string PlanText(const Plan& plan);

}  // namespace bascule
