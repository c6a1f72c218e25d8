#include "bridge/transport/route_table.h"

#include <utility>

namespace bascule {

void RouteTable::Expect(std::uint64_t connection) {
  MutexLock lock(mu_);
  if (!closed_) connections_.try_emplace(connection);
}

void RouteTable::Forget(std::uint64_t connection) {
  Routes dropped;  // Destroyed without the lock: closing a route takes time.
  MutexLock lock(mu_);
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  dropped = std::move(found->second);
  connections_.erase(found);
  changed_.NotifyAll();
}

void RouteTable::Close() {
  std::map<std::uint64_t, Routes> dropped;
  MutexLock lock(mu_);
  closed_ = true;
  dropped.swap(connections_);
  changed_.NotifyAll();
}

Status RouteTable::Claim(const RouteHello& hello) {
  RETURN_IF_ERROR(CheckRouteHello(hello));
  MutexLock lock(mu_);
  const auto found = connections_.find(hello.connection);
  if (found == connections_.end()) {
    return Status::PermissionDenied("unknown_connection", "the route names no connection that is open here");
  }
  Routes& routes = found->second;
  if (routes.contains(hello.route)) {
    return Status::AlreadyExists(
        "route_taken", fmt::format("sender_rank={} engine_rank={}", hello.route.sender_rank, hello.route.engine_rank));
  }
  if (routes.size() >= kMaxRoutesPerConnection) {
    return Status::ResourceExhausted("too_many_routes", fmt::format("at most {}", kMaxRoutesPerConnection));
  }
  routes.emplace(hello.route, nullptr);
  return OkStatus();
}

void RouteTable::Deliver(std::unique_ptr<BucketReceiver> receiver) {
  const RouteHello& hello = receiver->hello();
  MutexLock lock(mu_);
  const auto found = connections_.find(hello.connection);
  if (found == connections_.end()) return;
  found->second[hello.route] = std::move(receiver);
  changed_.NotifyAll();
}

Result<std::unique_ptr<BucketReceiver>> RouteTable::Accept(std::uint64_t connection, Route route, Deadline deadline) {
  MutexLock lock(mu_);
  for (bool waited_enough = false;;) {
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return Status::Cancelled("cancelled", "the connection is not expected here");
    const auto arrived = found->second.find(route);
    if (arrived != found->second.end() && arrived->second != nullptr) return std::move(arrived->second);
    if (waited_enough) {
      return Status::DeadlineExceeded("deadline", fmt::format("no route from sender_rank={} to engine_rank={}",
                                                              route.sender_rank, route.engine_rank));
    }
    waited_enough = !clock_.WaitUntil(changed_, mu_, deadline.point());
  }
}

}  // namespace bascule
