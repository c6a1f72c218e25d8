#include "bridge/transport/loopback/network.h"

#include <utility>

namespace bascule {

Status LoopbackNetwork::Bind(const std::string& address, std::shared_ptr<RouteTable> routes) {
  MutexLock lock(mu_);
  if (listening_.try_emplace(address, std::move(routes)).second) return OkStatus();
  return Status::FailedPrecondition("address_in_use", fmt::format("loopback address '{}'", address));
}

void LoopbackNetwork::Unbind(const std::string& address) {
  MutexLock lock(mu_);
  listening_.erase(address);
}

std::shared_ptr<RouteTable> LoopbackNetwork::Find(const std::string& address) const {
  MutexLock lock(mu_);
  const auto found = listening_.find(address);
  return found == listening_.end() ? nullptr : found->second;
}

}  // namespace bascule
