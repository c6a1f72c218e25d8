#include "bridge/transport/cuda_ipc/listener.h"

#include <utility>

#include "bridge/transport/cuda_ipc/route.h"
#include "bridge/transport/shm/sealed_arena.h"

namespace bascule {
namespace {

struct Introduction {
  RouteHello hello;
  FrameArena arena;
  std::shared_ptr<DeviceEnd> own;
  std::shared_ptr<DeviceEnd> sender;
};

// Reads the hello, which is there, opens what came with it, and claims the route.
Result<Introduction> ReadHello(MessageSocket& socket, Device& device, RouteTable& routes, Clock& clock) {
  CudaIpcHello message;
  UniqueFd arena_fd;
  RETURN_IF_ERROR(
      socket.Receive(std::as_writable_bytes(std::span(&message, 1)), Deadline::At(clock.Now()), clock, &arena_fd));
  ASSIGN_OR_RETURN(const RouteHello hello, FromCudaIpc(message));
  ASSIGN_OR_RETURN(FrameArena arena, MapSealedArena(arena_fd, hello.frame_bytes, hello.credits));
  ASSIGN_OR_RETURN(auto sender, DeviceEnd::Open(device, message.sender, hello.frame_bytes, hello.credits));
  ASSIGN_OR_RETURN(auto own, DeviceEnd::Make(device, /*frame_bytes=*/0, hello.credits));
  RETURN_IF_ERROR(routes.Claim(hello));
  return Introduction{hello, std::move(arena), std::move(own), std::move(sender)};
}

void Answer(MessageSocket socket, Device& device, RouteTable& routes, Clock& clock) {
  Result<Introduction> caller = ReadHello(socket, device, routes, clock);
  CudaIpcReply reply{.verdict = ToShm(caller.status())};
  if (caller.ok()) reply.receiver = caller->own->name();
  // A caller that is gone by now is lost to whoever accepts its route.
  (void)socket.Send(BytesOf(reply));
  if (!caller.ok()) return;
  routes.Deliver(MakeCudaIpcReceiver(MakeShmReceiver(caller->hello, std::move(caller->arena), std::move(socket), clock),
                                     std::move(caller->own), std::move(caller->sender), clock));
}

}  // namespace

Result<std::unique_ptr<CudaIpcListener>> CudaIpcListener::Create(const std::string& path, Device& device,
                                                                 Clock& clock) {
  auto routes = std::make_shared<RouteTable>(clock);
  auto answer = [routes, &device, &clock](MessageSocket caller) { Answer(std::move(caller), device, *routes, clock); };
  ASSIGN_OR_RETURN(auto door, SocketListener::Create(path, "cuda_ipc_listen", std::move(answer), clock));
  return std::unique_ptr<CudaIpcListener>(new CudaIpcListener(std::move(routes), std::move(door), device));
}

CudaIpcListener::~CudaIpcListener() {
  door_.reset();  // Nobody comes any more.
  routes_->Close();
}

}  // namespace bascule
