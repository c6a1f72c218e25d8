// A connected Unix socket (SOCK_SEQPACKET) that carries small messages of fixed size, and file descriptors. The kernel
// keeps message borders and tells at once when the peer is gone, however it went.
//
// Thread-safety: one thread sends, one receives; Cancel from any.
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace bascule {

sockaddr_un SocketAddress(const std::string& path);  // `path` passed CheckSocketPath

// A timeout for poll: whole milliseconds, rounded up, so that the time has passed when poll comes back.
int PollMs(Duration left);

template <typename T>
std::span<const std::byte> BytesOf(const T& message) {
  static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>,
                "a message has no padding, which would carry memory of ours to the peer");
  return std::as_bytes(std::span(&message, 1));
}

class MessageSocket {
 public:
  // Takes a connected socket.
  //
  // ResourceExhausted "descriptors"
  static Result<MessageSocket> Create(UniqueFd socket);

  // Connects to who listens at `path`, which passed CheckSocketPath; waits while there is no room for another caller.
  //
  // PermissionDenied "peer_credentials"; Unavailable "peer_unreachable"; DeadlineExceeded "deadline"
  // ResourceExhausted "descriptors"
  static Result<MessageSocket> Connect(const std::string& path, Deadline deadline, Clock& clock);

  // PermissionDenied "peer_credentials"  the peer runs as another user
  Status CheckPeer() const;
  // The process that connected, or listened; for people to read, since its number may be another's by now.
  int PeerProcess() const;

  // Queues one message, with `passed_fd` when it is one. The kernel's queue holds more than credits allow to be out; a
  // peer that lets it fill for seconds is lost.
  //
  // Unavailable "peer_lost"
  Status Send(std::span<const std::byte> message, int passed_fd = -1);

  // Waits for a message of exactly this size. A descriptor that comes with it goes to `passed_fd`, or is closed.
  //
  // Unavailable "peer_lost"; DeadlineExceeded "deadline"; Cancelled "cancelled"; DataLoss "bad_message"
  Status Receive(std::span<std::byte> message, Deadline deadline, Clock& clock, UniqueFd* passed_fd = nullptr);

  // Receive fails from now on.
  void Cancel();

  int fd() const { return socket_.get(); }

 private:
  MessageSocket(UniqueFd socket, UniqueFd cancelled) : socket_(std::move(socket)), cancelled_(std::move(cancelled)) {}
  Status WaitReadable(Deadline deadline, Clock& clock);

  UniqueFd socket_;
  UniqueFd cancelled_;  // an eventfd, readable once cancelled
};

}  // namespace bascule
