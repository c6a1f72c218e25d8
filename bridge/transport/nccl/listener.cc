#include "bridge/transport/nccl/listener.h"

#include <algorithm>
#include <utility>

#include "bridge/transport/nccl/route.h"

namespace bascule {

TransportEndpoint NcclListener::endpoint() const {
  NcclAddress address{.version = communicators_.version(), .carrier = carrier_.endpoint()};
  for (const Device* const device : devices_) {
    const DeviceUuid& uuid = device->description().uuid;
    if (std::ranges::find(address.devices, uuid) == address.devices.end()) address.devices.push_back(uuid);
  }
  return {TransportKind::kNccl, ToAddress(address)};
}

Result<std::unique_ptr<BucketReceiver>> NcclListener::Accept(std::uint64_t connection, Route route, Deadline deadline) {
  ASSIGN_OR_RETURN(auto carrier, carrier_.Accept(connection, route, deadline));
  RouteHello hello = carrier->hello();
  hello.frame_bytes -= kNcclWordsBytes;
  RETURN_IF_ERROR(CheckRouteHello(hello));
  if (std::cmp_greater_equal(route.engine_rank, devices_.size())) {
    return Status::InvalidArgument("bad_route",
                                   fmt::format("engine_rank={} of {}", route.engine_rank, devices_.size()));
  }
  Device& device = *devices_[static_cast<std::size_t>(route.engine_rank)];
  ASSIGN_OR_RETURN(auto frames, DeviceFrames::Make(device, hello.frame_bytes, hello.credits));
  return MakeNcclReceiver(hello, std::move(carrier), std::move(frames), device, communicators_, clock_);
}

}  // namespace bascule
