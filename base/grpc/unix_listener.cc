#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/grpc/unix_listener_internal.h"
#include "base/log.h"

namespace bascule {
namespace {

constexpr int kBacklog = 128;
// While the process has no descriptor left, the caller that wants one keeps the socket readable.
constexpr int kWithoutDescriptorMs = 100;

sockaddr_un NameOf(const std::string& path) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, path.data(), path.size());
  return name;
}

Status InUse(const NetAddress& address, std::string_view why) {
  return Status::FailedPrecondition("address_in_use", fmt::format("{} {}", why, address.ToString()));
}

// Only a refusal proves that nobody listens: a server whose backlog is full answers EAGAIN.
Status RemoveDeadSocket(const NetAddress& address) {
  struct stat found {};
  if (lstat(address.unix_path.c_str(), &found) != 0) return OkStatus();
  if (!S_ISSOCK(found.st_mode)) return InUse(address, "there is a file at");
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const sockaddr_un name = NameOf(address.unix_path);
  const bool dead =
      probe >= 0 && connect(probe, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 && errno == ECONNREFUSED;
  if (probe >= 0) close(probe);
  if (!dead) return InUse(address, "another server listens on");
  unlink(address.unix_path.c_str());
  return OkStatus();
}

Status CannotListen(const NetAddress& address, int error) {
  if (error == EADDRINUSE) return InUse(address, "another server listens on");
  return Status::Unavailable("cannot_listen", fmt::format("{}: {}", address.ToString(), std::strerror(error)));
}

// The socket's own mode, set before it has a name, becomes its file's: there is no moment in which others may call.
Status BindPrivately(int fd, const NetAddress& address) {
  const sockaddr_un name = NameOf(address.unix_path);
  const bool bound = fchmod(fd, S_IRUSR | S_IWUSR) == 0 &&
                     bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0 && listen(fd, kBacklog) == 0;
  return bound ? OkStatus() : CannotListen(address, errno);
}

bool MayCall(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  if (peer.uid == geteuid() || peer.uid == 0) return true;
  LogWarn("peer_refused", "uid={} pid={} want={}", peer.uid, peer.pid, geteuid());
  return false;
}

}  // namespace

Result<std::unique_ptr<UnixListener>> UnixListener::Open(const NetAddress& address) {
  RETURN_IF_ERROR(RemoveDeadSocket(address));
  const int stop = eventfd(0, EFD_CLOEXEC);
  const int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  Status bound = stop < 0 || listening < 0 ? CannotListen(address, errno) : BindPrivately(listening, address);
  struct stat file {};
  if (bound.ok() && lstat(address.unix_path.c_str(), &file) != 0) bound = CannotListen(address, errno);
  if (bound.ok()) return std::unique_ptr<UnixListener>(new UnixListener(address.unix_path, listening, stop, file));
  if (stop >= 0) close(stop);
  if (listening >= 0) close(listening);
  return bound;
}

UnixListener::UnixListener(std::string path, int listening_fd, int stop_fd, const struct stat& file)
    : path_(std::move(path)),
      listening_fd_(listening_fd),
      stop_fd_(stop_fd),
      device_(file.st_dev),
      inode_(file.st_ino) {}

UnixListener::~UnixListener() {
  const std::uint64_t one = 1;
  CHECK(write(stop_fd_, &one, sizeof one) == sizeof one);
  worker_.reset();
  struct stat file {};
  const bool ours = lstat(path_.c_str(), &file) == 0 && file.st_dev == device_ && file.st_ino == inode_;
  if (ours) unlink(path_.c_str());
  close(listening_fd_);
  close(stop_fd_);
}

void UnixListener::Serve(OnCaller on_caller) {
  on_caller_ = std::move(on_caller);
  worker_ = std::make_unique<Worker>("unix_listener", [this](std::stop_token) { TakeCallers(); });
}

void UnixListener::TakeCallers() {
  while (true) {
    pollfd events[] = {{stop_fd_, POLLIN, 0}, {listening_fd_, POLLIN, 0}};
    poll(events, 2, /*timeout=*/-1);
    if (events[0].revents != 0) return;
    if (events[1].revents != 0) TakeCaller();
  }
}

void UnixListener::TakeCaller() {
  const int fd = accept4(listening_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd >= 0 && MayCall(fd)) return on_caller_(listening_fd_, fd);
  if (fd >= 0) {
    close(fd);
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
    pollfd stop{stop_fd_, POLLIN, 0};
    poll(&stop, 1, kWithoutDescriptorMs);
  }
}

}  // namespace bascule
