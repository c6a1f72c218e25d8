// The two ends of a loopback route: one arena, and a mailbox in each direction.
#pragma once

#include <memory>

#include "bridge/transport/transport.h"

namespace bascule {

struct LoopbackRoute {
  std::unique_ptr<BucketSender> sender;
  std::unique_ptr<BucketReceiver> receiver;
};

// `hello` passed CheckRouteHello.
//
// ResourceExhausted "frame_memory"
Result<LoopbackRoute> OpenLoopbackRoute(const RouteHello& hello, Clock& clock);

}  // namespace bascule
