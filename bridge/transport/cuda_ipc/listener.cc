#include "bridge/transport/cuda_ipc/listener.h"

#include <algorithm>
#include <utility>

#include "bridge/transport/cuda_ipc/route.h"
#include "bridge/transport/shm/sealed_arena.h"

namespace bascule {
namespace {

// Of one engine rank after the other, or one for all.
using Devices = std::vector<Device*>;

struct Introduction {
  RouteHello hello;
  FrameArena arena;
  std::shared_ptr<DeviceEnd> own;
  std::shared_ptr<DeviceEnd> sender;
};

Result<Device*> DeviceOf(std::int32_t engine_rank, const Devices& devices) {
  if (devices.size() == 1) return devices.front();
  if (std::cmp_less(engine_rank, devices.size())) return devices[static_cast<std::size_t>(engine_rank)];
  return Status::InvalidArgument("bad_route", fmt::format("engine_rank={} of {}", engine_rank, devices.size()));
}

// Reads the hello, which is there, opens what came with it, and claims the route.
Result<Introduction> ReadHello(MessageSocket& socket, const Devices& devices, RouteTable& routes, Clock& clock) {
  CudaIpcHello message;
  UniqueFd arena_fd;
  RETURN_IF_ERROR(
      socket.Receive(std::as_writable_bytes(std::span(&message, 1)), Deadline::At(clock.Now()), clock, &arena_fd));
  ASSIGN_OR_RETURN(const RouteHello hello, FromCudaIpc(message));
  ASSIGN_OR_RETURN(FrameArena arena, MapSealedArena(arena_fd, hello.frame_bytes, hello.credits));
  ASSIGN_OR_RETURN(Device* const device, DeviceOf(hello.route.engine_rank, devices));
  auto sender = DeviceEnd::Open(*device, message.sender, hello.frame_bytes, hello.credits);
  if (!sender.ok()) return sender.status().WithContext(fmt::format("engine rank {}", hello.route.engine_rank));
  ASSIGN_OR_RETURN(auto own, DeviceEnd::Make(*device, /*frame_bytes=*/0, hello.credits));
  RETURN_IF_ERROR(routes.Claim(hello));
  return Introduction{hello, std::move(arena), std::move(own), *std::move(sender)};
}

void Answer(MessageSocket socket, const Devices& devices, RouteTable& routes, Clock& clock) {
  Result<Introduction> caller = ReadHello(socket, devices, routes, clock);
  CudaIpcReply reply{.verdict = ToShm(caller.status())};
  if (caller.ok()) reply.receiver = caller->own->name();
  // A caller that is gone by now is lost to whoever accepts its route.
  (void)socket.Send(BytesOf(reply));
  if (!caller.ok()) return;
  routes.Deliver(MakeCudaIpcReceiver(MakeShmReceiver(caller->hello, std::move(caller->arena), std::move(socket), clock),
                                     std::move(caller->own), std::move(caller->sender), clock));
}

}  // namespace

Result<std::unique_ptr<CudaIpcListener>> CudaIpcListener::Create(const std::string& path, std::vector<Device*> devices,
                                                                 Clock& clock) {
  auto routes = std::make_shared<RouteTable>(clock);
  auto answer = [routes, devices, &clock](MessageSocket caller) { Answer(std::move(caller), devices, *routes, clock); };
  ASSIGN_OR_RETURN(auto door, SocketListener::Create(path, "cuda_ipc_listen", std::move(answer), clock));
  return std::unique_ptr<CudaIpcListener>(new CudaIpcListener(std::move(routes), std::move(door), std::move(devices)));
}

Result<std::unique_ptr<CudaIpcListener>> CudaIpcListener::Create(const std::string& path, Device& device,
                                                                 Clock& clock) {
  return Create(path, std::vector{&device}, clock);
}

CudaIpcListener::~CudaIpcListener() {
  door_.reset();  // Nobody comes any more.
  routes_->Close();
}

TransportEndpoint CudaIpcListener::endpoint() const {
  CudaIpcAddress address{.devices = {}, .path = door_->path()};
  for (const Device* const device : devices_) {
    const DeviceUuid& uuid = device->description().uuid;
    if (std::ranges::find(address.devices, uuid) == address.devices.end()) address.devices.push_back(uuid);
  }
  return {TransportKind::kCudaIpc, ToAddress(address)};
}

}  // namespace bascule
