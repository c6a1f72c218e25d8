#include "bridge/transport/nccl/dialer.h"

#include <algorithm>
#include <utility>

#include "bridge/transport/nccl/messages.h"
#include "bridge/transport/nccl/route.h"

namespace bascule {

Status NcclDialer::CheckFits(const TransportEndpoint& endpoint) const {
  const Result<NcclAddress> address = ParseNcclAddress(endpoint.address);
  if (endpoint.kind != TransportKind::kNccl || !address.ok()) {
    return Status::Unavailable("peer_unreachable", fmt::format("'{}' is no device and carrier", endpoint.address));
  }
  const DeviceUuid& own = device_.description().uuid;
  if (std::ranges::find(address->devices, own) != address->devices.end()) {
    return Status::FailedPrecondition("same_device",
                                      fmt::format("NCCL takes no two ranks on {}: use cuda_ipc", own.ToString()));
  }
  if (address->version == communicators_.version()) return OkStatus();
  return Status::FailedPrecondition("nccl_version", fmt::format("NCCL {} there and {} here: they must be the same",
                                                                address->version, communicators_.version()));
}

bool NcclDialer::CanReach(const TransportEndpoint& endpoint) const {
  return CheckFits(endpoint).ok() && carrier_.CanReach(ParseNcclAddress(endpoint.address)->carrier);
}

Result<std::unique_ptr<BucketSender>> NcclDialer::Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                                       Deadline deadline) {
  RETURN_IF_ERROR(CheckRouteHello(hello));
  RETURN_IF_ERROR(CheckFits(endpoint));
  const NcclAddress address = ParseNcclAddress(endpoint.address).value();
  ASSIGN_OR_RETURN(FrameArena heads,
                   FrameArena::Anonymous(hello.frame_bytes, hello.credits, FrameArena::Pages::kWhenTouched));
  ASSIGN_OR_RETURN(auto mover,
                   NcclMover::Make(device_, communicators_, hello.frame_bytes, hello.credits, /*receivers=*/1, clock_));
  RouteHello carried = hello;
  carried.frame_bytes += kNcclWordsBytes;
  ASSIGN_OR_RETURN(auto carrier, carrier_.Dial(address.carrier, carried, deadline));
  return MakeNcclSender(hello, std::move(carrier), std::move(heads), std::move(mover),
                        {.avoided = avoided_, .address = endpoint.address}, clock_);
}

Result<std::unique_ptr<BucketCast>> NcclDialer::Cast(std::span<BucketSender* const> routes) {
  const BucketSender& any = *routes.front();
  ASSIGN_OR_RETURN(auto mover, NcclMover::Make(device_, communicators_, any.frame_bytes(), any.credits(),
                                               static_cast<std::int32_t>(routes.size()), clock_));
  return MakeNcclCast(routes, std::move(mover));
}

// The other end's word: what went wrong at this one its routes have said already.
void NcclDialer::NoteFailure(const TransportEndpoint& endpoint, const Status& why) {
  if (why.reason().starts_with("nccl_") && !avoided_->Contains(endpoint.address)) avoided_->Add(endpoint.address, why);
}

}  // namespace bascule
