// Stage: plan (layout -> [plan] -> staging)
//
// A plan with what the receiving side derives from it, made once per pair of layouts.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/manifest/manifest.h"
#include "bridge/plan/planner.h"

namespace bascule {

// What an engine rank copies from the version that is live to the one that is staged: a bucket's worth at most. A
// slice's engine box is its place in both; its sender's is nobody's.
struct CarriedPart {
  int engine_rank = 0;
  std::vector<Slice> slices;
};

// Thread-safety: thread-compatible (a value); read-only once made.
struct ReceivePlan {
  Plan plan;
  std::vector<CarriedPart> carried;  // all of Plan::carried, on every rank that holds it
  std::int64_t carried_bytes = 0;
  std::vector<DigestKey> keys;              // per plan tensor
  std::vector<std::size_t> manifest_order;  // plan tensors by name: the order of a manifest
  std::int64_t largest_frame_bytes = 0;

  int engine_rank(const Bucket& bucket) const {
    return plan.routes[static_cast<std::size_t>(bucket.route)].engine_rank;
  }
};

// Of a plan without a scope.
ReceivePlan MakeReceivePlan(Plan plan);

// The plans of the last few sender layouts for one engine layout. Thread-safety: thread-safe.
class ReceivePlanCache {
 public:
  explicit ReceivePlanCache(const Layout& engine_layout)
      : engine_layout_(engine_layout), engine_digest_(LayoutDigest(engine_layout)) {}

  // Shared: a session goes on with its plan after the cache has dropped it. Errors are those of MakePlan.
  Result<std::shared_ptr<const ReceivePlan>> PlanFor(const Layout& sender_layout, const PlanOptions& options)
      EXCLUDES(mu_);
  const Hash256& engine_digest() const { return engine_digest_; }

 private:
  struct Entry {
    Hash256 sender;
    PlanOptions options;
    std::shared_ptr<const ReceivePlan> plan;
  };
  std::shared_ptr<const ReceivePlan> Find(const Hash256& sender, const PlanOptions& options) const EXCLUDES(mu_);

  const Layout& engine_layout_;
  const Hash256 engine_digest_;
  mutable Mutex mu_;  // Guards the entries; not held while a plan is made.
  std::deque<Entry> entries_ GUARDED_BY(mu_);
};

}  // namespace bascule
