// The two ends of an nccl route: a route of another transport, the carrier, which takes the first part of each frame,
// its acknowledgement and news of the peer's end, and a link, which moves the second part from device to device.
#pragma once

#include <memory>
#include <string>

#include "bridge/transport/avoided_endpoints.h"
#include "bridge/transport/frame_arena.h"
#include "bridge/transport/nccl/mover.h"
#include "bridge/transport/transport.h"
#include "device/communicator.h"

namespace bascule {

// What a sender tells when NCCL is to blame for the end of its route.
struct NcclBlame {
  std::shared_ptr<AvoidedEndpoints> avoided;
  std::string address;
};

// `hello` is what the route's user asked for; the carrier's frames are larger by kNcclWordsBytes.
std::unique_ptr<BucketSender> MakeNcclSender(const RouteHello& hello, std::unique_ptr<BucketSender> carrier,
                                             FrameArena heads, std::shared_ptr<NcclMover> mover, NcclBlame blame,
                                             Clock& clock);
// What carries a second part to the receivers of all `routes`, which MakeNcclSender made for one sending rank; `mover`
// has as many receivers.
std::unique_ptr<BucketCast> MakeNcclCast(std::span<BucketSender* const> routes, std::shared_ptr<NcclMover> mover);
// Second parts arrive on `device`.
std::unique_ptr<BucketReceiver> MakeNcclReceiver(const RouteHello& hello, std::unique_ptr<BucketReceiver> carrier,
                                                 std::unique_ptr<DeviceFrames> frames, Device& device,
                                                 Communicators& communicators, Clock& clock);

}  // namespace bascule
