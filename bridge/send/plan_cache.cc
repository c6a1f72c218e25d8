#include "bridge/send/plan_cache.h"

#include <utility>

#include "bridge/plan/projection.h"

namespace bascule {
namespace {

constexpr std::size_t kMaxPlans = 8;

}  // namespace

Result<std::shared_ptr<const Plan>> PlanCache::PlanFor(const Layout& sender, const Layout& engine,
                                                       const PlanOptions& options) {
  const Hash256 sender_digest = LayoutDigest(sender);
  const Hash256 engine_digest = LayoutDigest(engine);
  MutexLock lock(mu_);
  for (const Entry& entry : entries_) {
    if (entry.plan->sender_layout == sender_digest && entry.plan->engine_layout == engine_digest &&
        entry.options == options) {
      return entry.plan;
    }
  }
  ASSIGN_OR_RETURN(Plan plan, MakePlan(sender, engine, options));
  if (sender_rank_) plan = ProjectionOf(std::move(plan), *sender_rank_);
  entries_.push_front({.options = options, .plan = std::make_shared<const Plan>(std::move(plan))});
  if (entries_.size() > kMaxPlans) entries_.pop_back();
  return entries_.front().plan;
}

}  // namespace bascule
