#include "bridge/transport/cuda_ipc/dialer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "bridge/transport/cuda_ipc/messages.h"
#include "bridge/transport/cuda_ipc/route.h"
#include "bridge/transport/shm/sealed_arena.h"

namespace bascule {
namespace {

// What devices and their sharing of memory fail with. A device that is lost to its process is not to be reached in any
// other way either.
constexpr std::array<std::string_view, 7> kOfDevices = {"device_error",   "device_memory",     "device_deadline",
                                                        "no_peer_access", "bad_memory_handle", "other_device",
                                                        "same_process"};

}  // namespace

bool CudaIpcDialer::CanReach(const TransportEndpoint& endpoint) const {
  if (endpoint.kind != TransportKind::kCudaIpc) return false;
  const Result<CudaIpcAddress> address = ParseCudaIpcAddress(endpoint.address);
  struct stat found {};
  return address.ok() && std::ranges::count(address->devices, device_.description().uuid) > 0 &&
         lstat(address->path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode) && found.st_uid == geteuid();
}

Result<std::unique_ptr<BucketSender>> CudaIpcDialer::Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                                          Deadline deadline) {
  RETURN_IF_ERROR(CheckRouteHello(hello));
  const Result<CudaIpcAddress> address = ParseCudaIpcAddress(endpoint.address);
  if (endpoint.kind != TransportKind::kCudaIpc || !address.ok()) {
    return Status::Unavailable("peer_unreachable", fmt::format("'{}' is no device and socket path", endpoint.address));
  }
  retired_->Sweep();
  ASSIGN_OR_RETURN(MessageSocket socket, MessageSocket::Connect(address->path, deadline, clock_));
  RETURN_IF_ERROR(socket.CheckPeer());
  ASSIGN_OR_RETURN(SealedArena arena, MakeSealedArena(hello.frame_bytes, hello.credits));
  ASSIGN_OR_RETURN(auto own, DeviceEnd::Make(device_, hello.frame_bytes, hello.credits));
  const CudaIpcHello message{.route = ToShm(hello), .sender = own->name()};
  RETURN_IF_ERROR(socket.Send(BytesOf(message), arena.fd.get()));
  CudaIpcReply reply;
  RETURN_IF_ERROR(socket.Receive(std::as_writable_bytes(std::span(&reply, 1)), deadline, clock_));
  RETURN_IF_ERROR(FromShm(reply.verdict));
  ASSIGN_OR_RETURN(auto peer, DeviceEnd::Open(device_, reply.receiver, /*frame_bytes=*/0, hello.credits));
  return MakeCudaIpcSender(MakeShmSender(hello, std::move(arena.frames), std::move(socket), clock_), std::move(own),
                           std::move(peer), retired_, clock_);
}

void CudaIpcDialer::NoteFailure(const TransportEndpoint& endpoint, const Status& why) {
  if (std::ranges::find(kOfDevices, why.reason()) != kOfDevices.end()) avoided_.Add(endpoint.address, why);
}

}  // namespace bascule
