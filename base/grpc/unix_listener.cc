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
  const int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listening < 0) return CannotListen(address, errno);
  const Status bound = BindPrivately(listening, address);
  ASSIGN_OR_RETURN(auto intake, CallerIntake::Create({listening}));
  RETURN_IF_ERROR(bound);
  struct stat file {};
  if (lstat(address.unix_path.c_str(), &file) != 0) return CannotListen(address, errno);
  return std::unique_ptr<UnixListener>(new UnixListener(address.unix_path, std::move(intake), file));
}

UnixListener::UnixListener(std::string path, std::unique_ptr<CallerIntake> intake, const struct stat& file)
    : path_(std::move(path)), intake_(std::move(intake)), device_(file.st_dev), inode_(file.st_ino) {}

UnixListener::~UnixListener() {
  intake_.reset();
  struct stat file {};
  const bool ours = lstat(path_.c_str(), &file) == 0 && file.st_dev == device_ && file.st_ino == inode_;
  if (ours) unlink(path_.c_str());
}

Status UnixListener::Serve(CallerIntake::OnCaller on_caller) { return intake_->Serve(&MayCall, std::move(on_caller)); }

}  // namespace bascule
