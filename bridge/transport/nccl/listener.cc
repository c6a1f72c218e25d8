#include "bridge/transport/nccl/listener.h"

#include <utility>

#include "bridge/transport/nccl/route.h"

namespace bascule {

Result<std::unique_ptr<BucketReceiver>> NcclListener::Accept(std::uint64_t connection, Route route, Deadline deadline) {
  ASSIGN_OR_RETURN(auto carrier, carrier_.Accept(connection, route, deadline));
  RouteHello hello = carrier->hello();
  hello.frame_bytes -= kNcclWordsBytes;
  RETURN_IF_ERROR(CheckRouteHello(hello));
  ASSIGN_OR_RETURN(auto link,
                   NcclLink::Make(LinkEnd::kReceiver, device_, communicators_, hello.frame_bytes, hello.credits));
  return MakeNcclReceiver(hello, std::move(carrier), std::move(link), clock_);
}

}  // namespace bascule
