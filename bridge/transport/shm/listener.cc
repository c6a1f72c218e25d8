#include "bridge/transport/shm/listener.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "bridge/transport/shm/messages.h"
#include "bridge/transport/shm/route.h"
#include "bridge/transport/shm/runtime_directory.h"
#include "bridge/transport/shm/sealed_arena.h"

namespace bascule {
namespace {

// A caller says its hello at once; one that does not only holds a place.
constexpr Duration kHelloPatience = std::chrono::seconds(5);
constexpr std::size_t kMaxCallers = 64;

struct Introduction {
  RouteHello hello;
  FrameArena arena;
};

// Reads the hello, which is there, and maps the arena that came with it.
Result<Introduction> ReadHello(MessageSocket& socket, Clock& clock) {
  ShmHello message;
  UniqueFd arena_fd;
  RETURN_IF_ERROR(
      socket.Receive(std::as_writable_bytes(std::span(&message, 1)), Deadline::At(clock.Now()), clock, &arena_fd));
  ASSIGN_OR_RETURN(const RouteHello hello, FromShm(message));
  ASSIGN_OR_RETURN(FrameArena arena, MapSealedArena(arena_fd, hello.frame_bytes, hello.credits));
  return Introduction{hello, std::move(arena)};
}

}  // namespace

Result<std::unique_ptr<ShmListener>> ShmListener::Create(const std::string& path, Clock& clock) {
  ASSIGN_OR_RETURN(UniqueFd listening, ListenAt(path, clock));
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return Status::ResourceExhausted("descriptors", std::strerror(errno));
  return std::unique_ptr<ShmListener>(new ShmListener(path, std::move(listening), std::move(stop), clock));
}

ShmListener::ShmListener(std::string path, UniqueFd listening, UniqueFd stop, Clock& clock)
    : path_(std::move(path)),
      clock_(clock),
      listening_(std::move(listening)),
      stop_(std::move(stop)),
      routes_(std::make_shared<RouteTable>(clock)),
      worker_("shm_listener", [this](std::stop_token) { Listen(); }) {}

ShmListener::~ShmListener() {
  const std::uint64_t one = 1;
  CHECK(write(stop_.get(), &one, sizeof one) == sizeof one);
  worker_.Join();
  unlink(path_.c_str());
  routes_->Close();
}

void ShmListener::Listen() {
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
      if (event->revents != 0) Answer(std::move(caller->socket));
      const bool gone = event->revents != 0 || caller->deadline.Passed(clock_);
      caller = gone ? callers.erase(caller) : std::next(caller);
    }
    if (events[1].revents != 0) TakeCallers(callers);
  }
}

// The process has no descriptor left, and the caller that wants one keeps the listening socket readable.
void ShmListener::WaitForDescriptors() {
  pollfd stop{stop_.get(), POLLIN, 0};
  poll(&stop, 1, /*timeout=*/100);
}

void ShmListener::TakeCallers(std::list<Caller>& callers) {
  while (callers.size() < kMaxCallers) {
    UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid() && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!fd.valid() && errno != EAGAIN) WaitForDescriptors();
    if (!fd.valid()) return;
    Result<MessageSocket> socket = MessageSocket::Create(std::move(fd));
    if (!socket.ok()) return;
    if (const Status peer = socket->CheckPeer(); !peer.ok()) {
      (void)socket->Send(BytesOf(ToShm(peer)));
      continue;
    }
    callers.push_back({*std::move(socket), Deadline::After(clock_, kHelloPatience)});
  }
}

void ShmListener::Answer(MessageSocket socket) {
  Result<Introduction> caller = ReadHello(socket, clock_);
  const Status verdict = caller.ok() ? routes_->Claim(caller->hello) : caller.status();
  // A caller that is gone by now is lost to whoever accepts its route.
  (void)socket.Send(BytesOf(ToShm(verdict)));
  if (!verdict.ok()) return;
  routes_->Deliver(MakeShmReceiver(caller->hello, std::move(caller->arena), std::move(socket), clock_));
}

}  // namespace bascule
