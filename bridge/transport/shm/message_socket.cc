#include "bridge/transport/shm/message_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

namespace bascule {
namespace {

constexpr int kSendPatienceMs = 5000;
// Room for the announcements of kMaxCredits frames, each of which costs the kernel less than a page.
constexpr int kSendBufferBytes = 1 << 20;

Status PeerLost(std::string why) { return Status::Unavailable("peer_lost", std::move(why)); }

// The control block of a message that carries one descriptor. CMSG_LEN, not CMSG_SPACE: the alignment behind the first
// descriptor has room for a second one, which a hostile peer could fill.
struct DescriptorSpace {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> bytes{};
  static constexpr std::size_t kUsed = CMSG_LEN(sizeof(int));
};

UniqueFd DescriptorOf(msghdr& header) {
  const cmsghdr* const control = CMSG_FIRSTHDR(&header);
  if (control == nullptr || control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS ||
      control->cmsg_len != DescriptorSpace::kUsed) {
    return UniqueFd();
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(control), sizeof fd);
  return UniqueFd(fd);
}

bool GetPeer(const UniqueFd& socket, ucred& peer) {
  socklen_t size = sizeof peer;
  return getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
}

}  // namespace

sockaddr_un SocketAddress(const std::string& path) {
  sockaddr_un address{};
  CHECK(path.size() < sizeof address.sun_path);
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

int PollMs(Duration left) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::min<std::int64_t>(ms, std::numeric_limits<int>::max()));
}

Result<MessageSocket> MessageSocket::Create(UniqueFd socket) {
  UniqueFd cancelled(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!cancelled.valid()) return Status::ResourceExhausted("descriptors", std::strerror(errno));
  // Best effort: a kernel that allows less still has room for some two hundred messages.
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof kSendBufferBytes);
  return MessageSocket(std::move(socket), std::move(cancelled));
}

Result<MessageSocket> MessageSocket::Connect(const std::string& path, Deadline deadline, Clock& clock) {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Status::ResourceExhausted("descriptors", std::strerror(errno));
  const sockaddr_un address = SocketAddress(path);
  while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    if (error == EACCES || error == EPERM) {
      return Status::PermissionDenied("peer_credentials", fmt::format("{}: {}", path, std::strerror(error)));
    }
    // EAGAIN: more callers wait than the listener's backlog holds, and no event tells when it has room.
    if (error != EAGAIN && error != EINTR) {
      return Status::Unavailable("peer_unreachable", fmt::format("{}: {}", path, std::strerror(error)));
    }
    if (deadline.Passed(clock)) return Status::DeadlineExceeded("deadline", fmt::format("{} is busy", path));
    clock.SleepUntil(clock.Now() + std::chrono::milliseconds(1), {});
  }
  return Create(std::move(fd));
}

Status MessageSocket::CheckPeer() const {
  ucred peer{};
  if (!GetPeer(socket_, peer)) return PeerLost(std::strerror(errno));
  if (peer.uid == geteuid()) return OkStatus();
  return Status::PermissionDenied("peer_credentials", fmt::format("uid={} want={}", peer.uid, geteuid()));
}

int MessageSocket::PeerProcess() const {
  ucred peer{};
  return GetPeer(socket_, peer) ? peer.pid : 0;
}

Status MessageSocket::Send(std::span<const std::byte> message, int passed_fd) {
  iovec part{const_cast<std::byte*>(message.data()), message.size()};
  DescriptorSpace space;
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (passed_fd >= 0) {
    header.msg_control = space.bytes.data();
    header.msg_controllen = space.bytes.size();
    cmsghdr* const control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = DescriptorSpace::kUsed;
    std::memcpy(CMSG_DATA(control), &passed_fd, sizeof passed_fd);
  }
  while (sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return PeerLost(std::strerror(errno));
    pollfd writable{socket_.get(), POLLOUT, 0};
    if (poll(&writable, 1, kSendPatienceMs) == 0) return PeerLost("it takes no message any more");
  }
  return OkStatus();
}

Status MessageSocket::Receive(std::span<std::byte> message, Deadline deadline, Clock& clock, UniqueFd* passed_fd) {
  while (true) {
    RETURN_IF_ERROR(WaitReadable(deadline, clock));
    iovec part{message.data(), message.size()};
    DescriptorSpace space;
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (passed_fd != nullptr) {
      header.msg_control = space.bytes.data();
      header.msg_controllen = DescriptorSpace::kUsed;
    }
    const ssize_t got = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return PeerLost(std::strerror(errno));
    if (passed_fd != nullptr) *passed_fd = DescriptorOf(header);
    if (got == 0) return PeerLost("it closed");
    if (std::cmp_not_equal(got, message.size()) || (header.msg_flags & MSG_TRUNC) != 0) {
      return Status::DataLoss("bad_message", fmt::format("got={} want={} bytes", got, message.size()));
    }
    return OkStatus();
  }
}

// What has arrived is read before a deadline that has passed is noticed: a wait until now is a poll.
Status MessageSocket::WaitReadable(Deadline deadline, Clock& clock) {
  while (true) {
    pollfd waits[] = {{socket_.get(), POLLIN, 0}, {cancelled_.get(), POLLIN, 0}};
    const int ready = poll(waits, std::size(waits), PollMs(deadline.Left(clock)));
    if (ready < 0 && errno != EINTR) return PeerLost(std::strerror(errno));
    if (ready > 0 && waits[1].revents != 0) return Status::Cancelled("cancelled");
    if (ready > 0) return OkStatus();  // also for a hangup: reading tells
    if (ready == 0 && deadline.Passed(clock)) return Status::DeadlineExceeded("deadline");
  }
}

void MessageSocket::Cancel() {
  const std::uint64_t one = 1;
  // It can only fail when the counter is full, and then it is readable.
  [[maybe_unused]] const ssize_t written = write(cancelled_.get(), &one, sizeof one);
}

}  // namespace bascule
