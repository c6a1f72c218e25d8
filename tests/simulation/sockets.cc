#include "tests/simulation/sockets.h"

#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

extern "C" {
extern const char __executable_start;
extern const char etext;
}

namespace bascule::simulation {
namespace {

Sockets* running = nullptr;

}  // namespace

Sockets::Sockets(Scheduler& scheduler, std::function<void(NodeId)> on_message)
    : scheduler_(scheduler), on_message_(std::move(on_message)) {
  running = this;
}
Sockets::~Sockets() { running = nullptr; }

Sockets* Sockets::Running() { return running; }

void Sockets::Opened(int fd) {
  if (fd < 0) return;
  owners_[fd] = scheduler_.node();
  if (IsGone()) shutdown(fd, SHUT_RDWR);
}

void Sockets::Closing(int fd) { owners_.erase(fd); }

void Sockets::Changed() { scheduler_.Notify(this, /*all=*/true); }

void Sockets::AwaitChange(std::optional<TimePoint> until) { scheduler_.WaitFor(this, until); }

void Sockets::Sever(NodeId node) {
  gone_.insert(node);
  for (const auto& [fd, owner] : owners_) {
    if (owner == node) shutdown(fd, SHUT_RDWR);
  }
  Changed();
}

}  // namespace bascule::simulation

namespace {

using bascule::TimePoint;
using bascule::simulation::Scheduler;
using bascule::simulation::Sockets;

template <typename Function>
Function Real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// Those of the schedule, if this program's own code called from a fiber.
Sockets* RunningFor(const void* caller) {
  const bool ours =
      caller >= static_cast<const void*>(&__executable_start) && caller < static_cast<const void*>(&etext);
  return ours && Scheduler::Running() != nullptr ? Sockets::Running() : nullptr;
}

// After a call that another process may notice.
template <typename T>
T Noticed(Sockets* sockets, T result) {
  const int error = errno;
  if (sockets != nullptr) sockets->Changed();
  errno = error;
  return result;
}

}  // namespace

extern "C" {

int socket(int domain, int type, int protocol) noexcept {
  static const auto real = Real<int (*)(int, int, int)>("socket");
  const int fd = real(domain, type, protocol);
  if (Sockets* const sockets = RunningFor(__builtin_return_address(0))) sockets->Opened(fd);
  return fd;
}

int accept4(int listening, sockaddr* address, socklen_t* size, int flags) {
  static const auto real = Real<int (*)(int, sockaddr*, socklen_t*, int)>("accept4");
  Sockets* const sockets = RunningFor(__builtin_return_address(0));
  if (sockets != nullptr && sockets->IsGone()) {
    errno = EINVAL;
    return -1;
  }
  const int fd = real(listening, address, size, flags);
  if (sockets != nullptr && fd >= 0) sockets->Opened(fd);
  return fd;
}

int connect(int fd, const sockaddr* address, socklen_t size) {
  static const auto real = Real<int (*)(int, const sockaddr*, socklen_t)>("connect");
  return Noticed(RunningFor(__builtin_return_address(0)), real(fd, address, size));
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static const auto real = Real<ssize_t (*)(int, const msghdr*, int)>("sendmsg");
  Sockets* const sockets = RunningFor(__builtin_return_address(0));
  if (sockets != nullptr) sockets->Sending();
  return Noticed(sockets, real(fd, message, flags));
}

ssize_t write(int fd, const void* bytes, size_t size) {
  static const auto real = Real<ssize_t (*)(int, const void*, size_t)>("write");
  return Noticed(RunningFor(__builtin_return_address(0)), real(fd, bytes, size));
}

int close(int fd) {
  static const auto real = Real<int (*)(int)>("close");
  Sockets* const sockets = RunningFor(__builtin_return_address(0));
  if (sockets != nullptr) sockets->Closing(fd);
  return Noticed(sockets, real(fd));
}

int unlink(const char* path) noexcept {
  static const auto real = Real<int (*)(const char*)>("unlink");
  const Sockets* const sockets = RunningFor(__builtin_return_address(0));
  return sockets != nullptr && sockets->IsGone() ? 0 : real(path);
}

// Processes are killed here, the machine is not: what is written stays.
int fsync(int fd) {
  static const auto real = Real<int (*)(int)>("fsync");
  return RunningFor(__builtin_return_address(0)) != nullptr ? 0 : real(fd);
}

int poll(pollfd* fds, nfds_t count, int timeout) {
  static const auto real = Real<int (*)(pollfd*, nfds_t, int)>("poll");
  Sockets* const sockets = RunningFor(__builtin_return_address(0));
  if (sockets == nullptr) return real(fds, count, timeout);
  std::optional<TimePoint> until;
  if (timeout >= 0) until = sockets->now() + std::chrono::milliseconds(timeout);
  while (true) {
    sockets->LetOthersGoOn();
    const int ready = real(fds, count, 0);
    if (ready != 0 || (until && *until <= sockets->now())) return ready;
    sockets->AwaitChange(until);
  }
}

}  // extern "C"
