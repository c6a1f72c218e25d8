// The receiving end of a gRPC route.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>

#include "bridge/transport/route_table.h"

namespace bascule {

// Serves one call of Transfer.Route: reads the hello, opens the route in `routes`, and moves frames until either end
// closes. The reactor frees itself.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ServeGrpcRoute(std::shared_ptr<RouteTable> routes,
                                                                            grpc::CallbackServerContext& context,
                                                                            Clock& clock);

}  // namespace bascule
