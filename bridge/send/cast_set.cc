#include "bridge/send/cast_set.h"

#include "bridge/plan/twins.h"

namespace bascule {

Result<CastSet> CastSet::Make(const Plan& plan, std::span<const std::unique_ptr<BucketSender>> routes,
                              TransportDialer& dialer) {
  CastSet set;
  if (!dialer.CanCast()) return set;
  for (std::uint32_t first = 0, twins = 0; first < plan.buckets.size(); first += twins) {
    twins = CountTwins(plan, first);
    std::vector<std::int32_t> of;
    std::vector<BucketSender*> senders;
    for (std::uint32_t bucket = first; bucket < first + twins; ++bucket) {
      of.push_back(plan.buckets[bucket].route);
      senders.push_back(routes[static_cast<std::size_t>(of.back())].get());
    }
    if (twins < 2 || senders.front() == nullptr) continue;
    std::unique_ptr<BucketCast>& cast = set.casts_[of];
    if (cast == nullptr) {
      ASSIGN_OR_RETURN(cast, dialer.Cast(senders));
    }
    set.of_first_[first] = {.cast = cast.get(), .twins = twins};
  }
  return set;
}

const CastSet::Entry* CastSet::Find(std::uint32_t bucket) const {
  const auto found = of_first_.find(bucket);
  return found == of_first_.end() ? nullptr : &found->second;
}

}  // namespace bascule
