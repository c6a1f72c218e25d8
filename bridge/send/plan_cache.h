// Plans by what they were made from: replicas of one kind share a plan, and so do later connections to them.
//
// Thread-safety: thread-safe.
#pragma once

#include <deque>
#include <memory>

#include "base/mutex.h"
#include "base/status.h"
#include "bridge/plan/planner.h"

namespace bascule {

class PlanCache {
 public:
  // As MakePlan. Shared, since the cache may drop a plan that a connection still uses.
  Result<std::shared_ptr<const Plan>> PlanFor(const Layout& sender, const Layout& engine, const PlanOptions& options)
      EXCLUDES(mu_);

 private:
  struct Entry {
    PlanOptions options;
    std::shared_ptr<const Plan> plan;  // names both layouts by digest
  };

  Mutex mu_;                                   // Held while a plan is made: whoever needs the same one waits for it.
  std::deque<Entry> entries_ GUARDED_BY(mu_);  // newest first
};

}  // namespace bascule
