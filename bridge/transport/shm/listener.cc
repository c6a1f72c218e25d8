#include "bridge/transport/shm/listener.h"

#include <utility>

#include "bridge/transport/shm/messages.h"
#include "bridge/transport/shm/route.h"
#include "bridge/transport/shm/sealed_arena.h"

namespace bascule {
namespace {

struct Introduction {
  RouteHello hello;
  FrameArena arena;
};

// Reads the hello, which is there, and maps the arena that came with it.
Result<Introduction> ReadHello(MessageSocket& socket, Clock& clock) {
  ShmHello message;
  UniqueFd arena_fd;
  RETURN_IF_ERROR(
      socket.Receive(std::as_writable_bytes(std::span(&message, 1)), Deadline::At(clock.Now()), clock, &arena_fd));
  ASSIGN_OR_RETURN(const RouteHello hello, FromShm(message));
  ASSIGN_OR_RETURN(FrameArena arena, MapSealedArena(arena_fd, hello.frame_bytes, hello.credits));
  return Introduction{hello, std::move(arena)};
}

void Answer(MessageSocket socket, RouteTable& routes, Clock& clock) {
  Result<Introduction> caller = ReadHello(socket, clock);
  const Status verdict = caller.ok() ? routes.Claim(caller->hello) : caller.status();
  // A caller that is gone by now is lost to whoever accepts its route.
  (void)socket.Send(BytesOf(ToShm(verdict)));
  if (!verdict.ok()) return;
  routes.Deliver(MakeShmReceiver(caller->hello, std::move(caller->arena), std::move(socket), clock));
}

}  // namespace

Result<std::unique_ptr<ShmListener>> ShmListener::Create(const std::string& path, Clock& clock) {
  auto routes = std::make_shared<RouteTable>(clock);
  ASSIGN_OR_RETURN(auto door,
                   SocketListener::Create(
                       path, "shm_listener",
                       [routes, &clock](MessageSocket caller) { Answer(std::move(caller), *routes, clock); }, clock));
  return std::unique_ptr<ShmListener>(new ShmListener(std::move(routes), std::move(door)));
}

ShmListener::~ShmListener() {
  door_.reset();  // Nobody comes any more.
  routes_->Close();
}

}  // namespace bascule
