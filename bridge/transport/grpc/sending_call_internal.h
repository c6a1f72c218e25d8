// The sending end of a gRPC route.
#pragma once

#include <memory>

#include "bridge/transport/transport.h"

namespace grpc {
class Channel;
}

namespace bascule {

// Opens a route over a connected channel, which becomes the route's own. `hello` passed CheckRouteHello.
//
// As TransportDialer::Dial.
Result<std::unique_ptr<BucketSender>> OpenGrpcRoute(std::shared_ptr<grpc::Channel> channel, const RouteHello& hello,
                                                    Deadline deadline, Clock& clock);

}  // namespace bascule
