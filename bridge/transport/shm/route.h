// The two ends of an shm route: frames in a shared arena; who may touch which is said over the socket.
#pragma once

#include <memory>

#include "bridge/transport/frame_arena.h"
#include "bridge/transport/shm/message_socket.h"
#include "bridge/transport/transport.h"

namespace bascule {

// What a transport that brings more than these frames needs to know of them.
class ShmSender : public BucketSender {
 public:
  virtual std::uint32_t acquired() const = 0;  // the frame that Acquire gave
  virtual std::uint32_t returned() const = 0;  // the frame that the latest NextAck freed
  virtual int fd() const = 0;                  // the socket
};
class ShmReceiver : public BucketReceiver {
 public:
  virtual int fd() const = 0;
};

std::unique_ptr<ShmSender> MakeShmSender(const RouteHello& hello, FrameArena arena, MessageSocket socket, Clock& clock);
std::unique_ptr<ShmReceiver> MakeShmReceiver(const RouteHello& hello, FrameArena arena, MessageSocket socket,
                                             Clock& clock);

}  // namespace bascule
