#include "bridge/transport/shm/socket_listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/descriptors.h"
#include "base/log.h"
#include "bridge/transport/shm/runtime_directory.h"

namespace bascule {
namespace {

// A caller says its hello at once; one that does not only holds a place.
constexpr Duration kHelloPatience = std::chrono::seconds(5);
constexpr std::size_t kMaxCallers = 64;
// What a caller costs besides its socket: the event that cancels a wait, and the memory that it passes.
constexpr int kCallerDescriptors = 2;

void Refuse(const UniqueFd& caller, const Status& why) {
  LogWarn("shm_caller_refused", "why=\"{}\"", why.ToString());
  const ShmReply reply = ToShm(why);
  // A caller that is gone by now has no use for it.
  (void)send(caller.get(), &reply, sizeof reply, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

Result<std::unique_ptr<SocketListener>> SocketListener::Create(const std::string& path, const std::string& thread_name,
                                                               Answer answer, Clock& clock) {
  ASSIGN_OR_RETURN(UniqueFd listening, ListenAt(path, clock));
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return Status::ResourceExhausted("descriptors", std::strerror(errno));
  return std::unique_ptr<SocketListener>(
      new SocketListener(path, thread_name, std::move(listening), std::move(stop), std::move(answer), clock));
}

SocketListener::SocketListener(std::string path, const std::string& thread_name, UniqueFd listening, UniqueFd stop,
                               Answer answer, Clock& clock)
    : path_(std::move(path)),
      clock_(clock),
      listening_(std::move(listening)),
      stop_(std::move(stop)),
      answer_(std::move(answer)),
      worker_(thread_name, [this](std::stop_token) { Listen(); }) {}

SocketListener::~SocketListener() {
  const std::uint64_t one = 1;
  CHECK(write(stop_.get(), &one, sizeof one) == sizeof one);
  worker_.Join();
  unlink(path_.c_str());
}

void SocketListener::Listen() {
  std::list<Caller> callers;
  while (true) {
    // While all places are taken, further callers wait in the backlog.
    std::vector<pollfd> events = {{stop_.get(), POLLIN, 0},
                                  {callers.size() < kMaxCallers ? listening_.get() : -1, POLLIN, 0}};
    Deadline first = Deadline::At(TimePoint::max());
    for (const Caller& caller : callers) {
      events.push_back({caller.socket.fd(), POLLIN, 0});
      first = std::min(first, caller.deadline);
    }
    poll(events.data(), events.size(), callers.empty() ? -1 : PollMs(first.Left(clock_)));
    if (events[0].revents != 0) return;

    auto event = events.begin() + 2;
    for (auto caller = callers.begin(); caller != callers.end(); ++event) {
      if (event->revents != 0) answer_(std::move(caller->socket));
      const bool gone = event->revents != 0 || caller->deadline.Passed(clock_);
      caller = gone ? callers.erase(caller) : std::next(caller);
    }
    if (events[1].revents != 0) TakeCallers(callers);
  }
}

// The process has no descriptor left, and the caller that wants one keeps the listening socket readable.
void SocketListener::WaitForDescriptors() {
  pollfd stop{stop_.get(), POLLIN, 0};
  poll(&stop, 1, /*timeout=*/100);
}

void SocketListener::TakeCallers(std::list<Caller>& callers) {
  while (callers.size() < kMaxCallers) {
    UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid() && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!fd.valid() && errno != EAGAIN) WaitForDescriptors();
    if (!fd.valid()) return;
    if (const Status room = CheckDescriptors(kCallerDescriptors); !room.ok()) {
      Refuse(fd, room);
      continue;
    }
    Result<MessageSocket> socket = MessageSocket::Create(std::move(fd));
    if (!socket.ok()) return;
    if (const Status peer = socket->CheckPeer(); !peer.ok()) {
      (void)socket->Send(BytesOf(ToShm(peer)));
      continue;
    }
    callers.push_back({*std::move(socket), Deadline::After(clock_, kHelloPatience)});
  }
}

}  // namespace bascule
