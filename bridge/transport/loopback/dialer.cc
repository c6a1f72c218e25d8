#include "bridge/transport/loopback/dialer.h"

#include <utility>

#include "bridge/transport/loopback/route.h"

namespace bascule {

bool LoopbackDialer::CanReach(const TransportEndpoint& endpoint) const {
  return endpoint.kind == TransportKind::kLoopback && network_.Find(endpoint.address) != nullptr;
}

Result<std::unique_ptr<BucketSender>> LoopbackDialer::Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                                           Deadline deadline) {
  if (deadline.Passed(clock_)) return Status::DeadlineExceeded("deadline");
  const std::shared_ptr<RouteTable> routes =
      endpoint.kind == TransportKind::kLoopback ? network_.Find(endpoint.address) : nullptr;
  if (routes == nullptr) {
    return Status::Unavailable("peer_unreachable", fmt::format("nobody listens at '{}'", endpoint.address));
  }
  RETURN_IF_ERROR(CheckRouteHello(hello));
  ASSIGN_OR_RETURN(LoopbackRoute route, OpenLoopbackRoute(hello, clock_));
  RETURN_IF_ERROR(routes->Claim(hello));
  routes->Deliver(std::move(route.receiver));
  return std::move(route.sender);
}

}  // namespace bascule
