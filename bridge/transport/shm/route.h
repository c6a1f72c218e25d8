// The two ends of an shm route: frames in a shared arena; who may touch which is said over the socket.
#pragma once

#include <memory>

#include "bridge/transport/frame_arena.h"
#include "bridge/transport/shm/message_socket.h"
#include "bridge/transport/transport.h"

namespace bascule {

std::unique_ptr<BucketSender> MakeShmSender(const RouteHello& hello, FrameArena arena, MessageSocket socket,
                                            Clock& clock);
std::unique_ptr<BucketReceiver> MakeShmReceiver(const RouteHello& hello, FrameArena arena, MessageSocket socket,
                                                Clock& clock);

}  // namespace bascule
