#include "engine_side/cache_registry.h"

#include <algorithm>
#include <utility>

namespace bascule {

Status CacheRegistry::Register(VersionedCache cache) {
  CHECK(cache.drop != nullptr && cache.count_others != nullptr);
  MutexLock lock(mu_);
  const auto same = [&](const VersionedCache& other) { return other.name == cache.name; };
  if (std::any_of(caches_.begin(), caches_.end(), same))
    return Status::InvalidArgument("bad_options", "registered twice: " + cache.name);
  caches_.push_back(std::move(cache));
  return OkStatus();
}

void CacheRegistry::Unregister(const std::string& name) {
  MutexLock lock(mu_);
  std::erase_if(caches_, [&](const VersionedCache& cache) { return cache.name == name; });
}

std::vector<CacheReport> CacheRegistry::Invalidate(const WeightVersion& live) {
  MutexLock lock(mu_);
  std::vector<CacheReport> reports;
  for (const VersionedCache& cache : caches_) {
    CacheReport& report = reports.emplace_back();
    report.cache = cache.name;
    if (cache.policy == CachePolicy::kDrop) report.dropped = cache.drop(live);
    report.kept = cache.count_others(live);
  }
  return reports;
}

}  // namespace bascule
