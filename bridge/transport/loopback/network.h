// The places that loopback endpoints name: an address space of one process, as hosts and ports are one of many.
//
// Thread-safety: thread-safe. It outlives its listeners and dialers.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/status.h"
#include "bridge/transport/route_table.h"

namespace bascule {

class LoopbackNetwork {
 public:
  // FailedPrecondition "address_in_use"
  Status Bind(const std::string& address, std::shared_ptr<RouteTable> routes) EXCLUDES(mu_);
  void Unbind(const std::string& address) EXCLUDES(mu_);
  // Null when nobody listens there. Shared: a dial may be at work while the listener goes.
  std::shared_ptr<RouteTable> Find(const std::string& address) const EXCLUDES(mu_);

 private:
  mutable Mutex mu_;
  std::map<std::string, std::shared_ptr<RouteTable>> listening_ GUARDED_BY(mu_);
};

}  // namespace bascule
