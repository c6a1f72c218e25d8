// Plans by what they were made from: replicas of one kind share a plan, and so do later connections to them.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "base/mutex.h"
#include "base/status.h"
#include "bridge/plan/planner.h"

namespace bascule {

class PlanCache {
 public:
  // Whole plans; or, of each, what one sending rank needs: ProjectionOf.
  PlanCache() = default;
  explicit PlanCache(std::int32_t sender_rank) : sender_rank_(sender_rank) {}

  // As MakePlan. Shared, since the cache may drop a plan that a connection still uses.
  Result<std::shared_ptr<const Plan>> PlanFor(const Layout& sender, const Layout& engine, const PlanOptions& options)
      EXCLUDES(mu_);

 private:
  struct Entry {
    PlanOptions options;
    std::shared_ptr<const Plan> plan;  // names both layouts by digest
  };

  const std::optional<std::int32_t> sender_rank_;
  Mutex mu_;                                   // Held while a plan is made: whoever needs the same one waits for it.
  std::deque<Entry> entries_ GUARDED_BY(mu_);  // newest first
};

}  // namespace bascule
