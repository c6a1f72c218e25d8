#include "bridge/transport/avoided_endpoints.h"

#include "base/log.h"

namespace bascule {
namespace {

// Longer than the attempts of one publish, and short enough for a network that was mended.
constexpr Duration kWhile = std::chrono::minutes(1);

}  // namespace

void AvoidedEndpoints::Add(const std::string& address, const Status& why) {
  LogWarn("link_avoided", "endpoint={} seconds={} why=\"{}\"", address,
          std::chrono::duration_cast<std::chrono::seconds>(kWhile).count(), why.ToString());
  const MutexLock lock(mu_);
  avoided_.insert_or_assign(address, Deadline::After(clock_, kWhile));
}

bool AvoidedEndpoints::Contains(const std::string& address) {
  const MutexLock lock(mu_);
  std::erase_if(avoided_, [&](const auto& entry) { return entry.second.Passed(clock_); });
  return avoided_.contains(address);
}

}  // namespace bascule
