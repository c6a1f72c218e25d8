#include "bridge/transport/shm/dialer.h"

#include <sys/stat.h>

#include <utility>

#include "base/log.h"
#include "bridge/transport/shm/message_socket.h"
#include "bridge/transport/shm/messages.h"
#include "bridge/transport/shm/route.h"
#include "bridge/transport/shm/runtime_directory.h"
#include "bridge/transport/shm/sealed_arena.h"

namespace bascule {
namespace {

constexpr std::int64_t kProbeBytes = 4096;

// What a route takes: memory that can be sealed and passed on, and this very user behind the socket. Containers and
// security modules forbid either.
Status TryOut(const std::string& path, Clock& clock) {
  RETURN_IF_ERROR(MakeSealedArena(kProbeBytes, /*credits=*/1).status());
  const Result<MessageSocket> socket = MessageSocket::Connect(path, Deadline::At(clock.Now()), clock);
  if (socket.status().reason() == "deadline") return OkStatus();  // somebody listens, and is busy
  RETURN_IF_ERROR(socket.status());
  return socket->CheckPeer();
}

}  // namespace

bool ShmDialer::CanReach(const TransportEndpoint& endpoint) const {
  struct stat found {};
  const bool is_here = endpoint.kind == TransportKind::kShm && CheckSocketPath(endpoint.address).ok() &&
                       lstat(endpoint.address.c_str(), &found) == 0 && S_ISSOCK(found.st_mode) &&
                       found.st_uid == geteuid();
  if (!is_here) return false;
  const Status usable = TryOut(endpoint.address, clock_);
  // The way that is taken instead may be far slower, and nothing else tells why.
  if (!usable.ok())
    LogWarn("transport_passed_over", "transport=shm at={} why=\"{}\"", endpoint.address, usable.ToString());
  return usable.ok();
}

Result<std::unique_ptr<BucketSender>> ShmDialer::Dial(const TransportEndpoint& endpoint, const RouteHello& hello,
                                                      Deadline deadline) {
  RETURN_IF_ERROR(CheckRouteHello(hello));
  if (endpoint.kind != TransportKind::kShm || !CheckSocketPath(endpoint.address).ok()) {
    return Status::Unavailable("peer_unreachable", fmt::format("'{}' is no socket path", endpoint.address));
  }
  ASSIGN_OR_RETURN(MessageSocket socket, MessageSocket::Connect(endpoint.address, deadline, clock_));
  RETURN_IF_ERROR(socket.CheckPeer());
  ASSIGN_OR_RETURN(SealedArena arena, MakeSealedArena(hello.frame_bytes, hello.credits));
  const Status sent = socket.Send(BytesOf(ToShm(hello)), arena.fd.get());
  ShmReply reply;
  const Status answered = socket.Receive(std::as_writable_bytes(std::span(&reply, 1)), deadline, clock_);
  // A listener without descriptors says so and hangs up before it has read the hello.
  if (answered.ok()) RETURN_IF_ERROR(FromShm(reply));
  RETURN_IF_ERROR(sent);
  RETURN_IF_ERROR(answered);
  return std::unique_ptr<BucketSender>(MakeShmSender(hello, std::move(arena.frames), std::move(socket), clock_));
}

}  // namespace bascule
