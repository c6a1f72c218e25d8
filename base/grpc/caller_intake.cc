#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/grpc/caller_intake_internal.h"
#include "base/log.h"
#include "base/start_worker.h"

namespace bascule {
namespace {

// While the process has no descriptor left, the caller that wants one keeps the socket readable.
constexpr int kWithoutDescriptorMs = 100;

}  // namespace

Result<std::unique_ptr<CallerIntake>> CallerIntake::Create(std::vector<int> listening) {
  const int stop = eventfd(0, EFD_CLOEXEC);
  if (stop >= 0) return std::unique_ptr<CallerIntake>(new CallerIntake(std::move(listening), stop));
  Status none = Status::ResourceExhausted("descriptors", std::strerror(errno));
  for (const int fd : listening) close(fd);
  return none;
}

CallerIntake::CallerIntake(std::vector<int> listening, int stop_fd)
    : listening_(std::move(listening)), stop_fd_(stop_fd) {}

CallerIntake::~CallerIntake() {
  const std::uint64_t one = 1;
  CHECK(write(stop_fd_, &one, sizeof one) == sizeof one);
  worker_.Join();
  for (const int fd : listening_) close(fd);
  close(stop_fd_);
}

Status CallerIntake::Serve(MayCall may_call, OnCaller on_caller) {
  may_call_ = std::move(may_call);
  on_caller_ = std::move(on_caller);
  ASSIGN_OR_RETURN(worker_, StartWorker("callers", [this](std::stop_token) { TakeCallers(); }));
  return OkStatus();
}

void CallerIntake::TakeCallers() {
  std::vector<pollfd> events = {{stop_fd_, POLLIN, 0}};
  for (const int fd : listening_) events.push_back({fd, POLLIN, 0});
  while (true) {
    poll(events.data(), events.size(), /*timeout=*/-1);
    if (events[0].revents != 0) return;
    for (std::size_t i = 1; i < events.size(); ++i) {
      if (events[i].revents != 0) TakeCaller(events[i].fd);
    }
  }
}

void CallerIntake::TakeCaller(int listening_fd) {
  const int fd = accept4(listening_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  const int error = fd >= 0 ? 0 : errno;
  const bool was_short =
      std::exchange(short_of_descriptors_, error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS);
  if (short_of_descriptors_) {
    if (!was_short) LogWarn("callers_wait", "why=\"{}\"", std::strerror(error));
    pollfd stop{stop_fd_, POLLIN, 0};
    poll(&stop, 1, kWithoutDescriptorMs);
  }
  if (fd < 0) return;
  if (may_call_(fd)) return on_caller_(listening_fd, fd);
  close(fd);
}

}  // namespace bascule
