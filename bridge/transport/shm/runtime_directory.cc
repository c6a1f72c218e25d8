#include "bridge/transport/shm/runtime_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "bridge/transport/shm/message_socket.h"

namespace bascule {
namespace {

constexpr int kBacklog = 64;
constexpr Duration kLockPatience = std::chrono::seconds(5);

// One process at a time looks for a dead socket and replaces it. The lock goes when `directory` is closed.
Status LockDirectory(const UniqueFd& directory, Clock& clock) {
  const Deadline deadline = Deadline::After(clock, kLockPatience);
  while (flock(directory.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Status::Unavailable("cannot_listen", std::strerror(errno));
    if (deadline.Passed(clock))
      return Status::Unavailable("cannot_listen", "another process keeps the directory locked");
    clock.SleepUntil(clock.Now() + std::chrono::milliseconds(1), {});
  }
  return OkStatus();
}

// Only a refusal proves that nobody is there: a listener whose backlog is full answers EAGAIN. Between bind and listen
// a socket refuses too, but whoever is there holds the directory's lock.
bool IsDead(const std::string& path) {
  const UniqueFd probe(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = SocketAddress(path);
  return connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
         errno == ECONNREFUSED;
}

Status RemoveDeadSocket(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) != 0) return OkStatus();
  if (!S_ISSOCK(found.st_mode)) {
    return Status::FailedPrecondition("address_in_use", fmt::format("{} is no socket", path));
  }
  if (!IsDead(path)) {
    return Status::FailedPrecondition("address_in_use", fmt::format("another process listens on {}", path));
  }
  unlink(path.c_str());
  return OkStatus();
}

void RemoveDeadNeighbours(const std::filesystem::path& directory) {
  std::error_code failed;
  for (std::filesystem::directory_iterator at(directory, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string path = at->path().string();
    struct stat found {};
    if (lstat(path.c_str(), &found) != 0 || !S_ISSOCK(found.st_mode) || !CheckSocketPath(path).ok()) continue;
    if (IsDead(path)) unlink(path.c_str());
  }
}

Result<UniqueFd> MakeAndOpen(const std::string& path, int flags, struct stat& found) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return Status::PermissionDenied("runtime_directory", fmt::format("{}: {}", path, std::strerror(errno)));
  }
  UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags));
  if (!directory.valid() || fstat(directory.get(), &found) != 0) {
    return Status::PermissionDenied("runtime_directory", fmt::format("{}: {}", path, std::strerror(errno)));
  }
  return directory;
}

// Where nobody else can take a socket of this user away, or put another in its place.
Result<UniqueFd> OpenGuardedDirectory(const std::string& path) {
  struct stat found {};
  ASSIGN_OR_RETURN(UniqueFd directory, MakeAndOpen(path, 0, found));
  const bool owned = found.st_uid == geteuid() || found.st_uid == 0;
  const bool guarded = (found.st_mode & 022) == 0 || (found.st_mode & S_ISVTX) != 0;
  if (owned && guarded) return directory;
  return Status::PermissionDenied(
      "runtime_directory", fmt::format("{}: owner {} mode {:o}: others may exchange what is in it", path, found.st_uid,
                                       found.st_mode & 07777));
}

Result<UniqueFd> BindAndListen(const std::string& path) {
  UniqueFd listening(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = SocketAddress(path);
  // The mode of the socket is that of the file which bind makes.
  if (!listening.valid() || fchmod(listening.get(), 0600) != 0 ||
      bind(listening.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listening.get(), kBacklog) != 0) {
    return Status::Unavailable("cannot_listen", fmt::format("{}: {}", path, std::strerror(errno)));
  }
  return listening;
}

}  // namespace

std::string DefaultRuntimeDirectory() {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return fmt::format("{}/bascule", runtime);
  return fmt::format("/tmp/bascule-{}", geteuid());
}

Result<UniqueFd> OpenPrivateDirectory(const std::string& path) {
  struct stat found {};
  ASSIGN_OR_RETURN(UniqueFd directory, MakeAndOpen(path, O_NOFOLLOW, found));
  if (found.st_uid != geteuid() || (found.st_mode & 077) != 0) {
    return Status::PermissionDenied("runtime_directory",
                                    fmt::format("{}: owner {} mode {:o}, want owner {} mode 700", path, found.st_uid,
                                                found.st_mode & 07777, geteuid()));
  }
  return directory;
}

Status CheckSocketPath(const std::string& path) {
  if (!path.empty() && path.front() == '/' && path.size() < sizeof(sockaddr_un::sun_path) &&
      path.find('\0') == std::string::npos) {
    return OkStatus();
  }
  return Status::InvalidArgument(
      "bad_socket_path", fmt::format("'{}': absolute and below {} bytes, please", path, sizeof(sockaddr_un::sun_path)));
}

Result<UniqueFd> ListenAt(const std::string& path, Clock& clock) {
  RETURN_IF_ERROR(CheckSocketPath(path));
  ASSIGN_OR_RETURN(const UniqueFd directory, OpenPrivateDirectory(std::filesystem::path(path).parent_path()));
  RETURN_IF_ERROR(LockDirectory(directory, clock));
  RETURN_IF_ERROR(RemoveDeadSocket(path));
  RemoveDeadNeighbours(std::filesystem::path(path).parent_path());
  return BindAndListen(path);
}

Result<UniqueFd> ListenAtChosenPath(const std::string& path, Clock& clock) {
  RETURN_IF_ERROR(CheckSocketPath(path));
  ASSIGN_OR_RETURN(const UniqueFd directory, OpenGuardedDirectory(std::filesystem::path(path).parent_path()));
  RETURN_IF_ERROR(LockDirectory(directory, clock));
  RETURN_IF_ERROR(RemoveDeadSocket(path));
  return BindAndListen(path);
}

}  // namespace bascule
