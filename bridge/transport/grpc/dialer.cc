#include "bridge/transport/grpc/dialer.h"

#include "base/grpc/grpc_channel.h"
#include "base/net_address.h"
#include "bridge/transport/grpc/sending_call_internal.h"

namespace bascule {

bool GrpcDialer::CanReach(const TransportEndpoint& endpoint) const {
  return endpoint.kind == TransportKind::kGrpc && NetAddress::Parse(endpoint.address).ok();
}

Result<std::unique_ptr<BucketSender>> GrpcDialer::Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                                       Deadline deadline) {
  RETURN_IF_ERROR(CheckRouteHello(hello));
  if (!CanReach(endpoint)) {
    return Status::Unavailable("peer_unreachable", fmt::format("'{}' cannot be dialled", endpoint.address));
  }
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel,
                   ConnectGrpcChannel(endpoint.address, deadline, clock_, security_));
  return OpenGrpcRoute(std::move(channel), hello, deadline, clock_);
}

}  // namespace bascule
