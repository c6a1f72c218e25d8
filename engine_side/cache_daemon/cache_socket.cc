#include "engine_side/cache_daemon/cache_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "bridge/transport/shm/runtime_directory.h"

namespace bascule {
namespace {

// A caller says its hello at once; one that does not only holds a place.
constexpr Duration kHelloPatience = std::chrono::seconds(5);
constexpr std::size_t kMaxCallers = 64;

void Signal(const UniqueFd& event) {
  const std::uint64_t one = 1;
  // It can only fail when the counter is full, and then it is readable.
  [[maybe_unused]] const ssize_t written = write(event.get(), &one, sizeof one);
}

void Drain(const UniqueFd& event) {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(event.get(), &count, sizeof count);
}

Status SendVersion(MessageSocket& socket, const LiveObject& live) {
  const VersionObject& object = *live.object;
  const CacheVersion version{.sequence = live.sequence,
                             .number = object.version.number,
                             .manifest_bytes = object.manifest_bytes,
                             .rank_count = static_cast<std::uint32_t>(object.ranks.size()),
                             .change = static_cast<std::uint32_t>(live.change),
                             .run = ToRunText(object.version.run)};
  RETURN_IF_ERROR(socket.Send(BytesOf(version), object.manifest.get()));
  for (std::size_t r = 0; r < object.ranks.size(); ++r) {
    const CacheRank rank{.sequence = live.sequence, .rank = r, .bytes = object.rank_bytes[r]};
    RETURN_IF_ERROR(socket.Send(BytesOf(rank), object.ranks[r].get()));
  }
  return OkStatus();
}

}  // namespace

struct CacheSocket::Caller {
  MessageSocket socket;
  Deadline hello_by;
  bool greeted = false;
  bool wants_one = false;                       // else whatever is live, now and later
  std::shared_ptr<const VersionObject> wanted;  // that one, until it is handed out
  std::uint64_t found = 0;                      // sequence of what was live when it came
  std::uint64_t handed_out = 0;                 // sequence
  bool reported = true;                         // on what was handed out last
  AttachedEngine shown;
};

Result<std::unique_ptr<CacheSocket>> CacheSocket::Create(CacheSocketOptions options, const VersionStore& store) {
  ASSIGN_OR_RETURN(UniqueFd listening, ListenAtChosenPath(options.path, *options.clock));
  UniqueFd stop(eventfd(0, EFD_CLOEXEC)), changed(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid() || !changed.valid()) return Status::ResourceExhausted("descriptors", std::strerror(errno));
  return std::unique_ptr<CacheSocket>(
      new CacheSocket(std::move(options), store, std::move(listening), std::move(stop), std::move(changed)));
}

CacheSocket::CacheSocket(CacheSocketOptions options, const VersionStore& store, UniqueFd listening, UniqueFd stop,
                         UniqueFd changed)
    : options_(std::move(options)),
      store_(store),
      listening_(std::move(listening)),
      stop_(std::move(stop)),
      changed_(std::move(changed)),
      worker_("cache_socket", [this](std::stop_token) { Listen(); }) {}

CacheSocket::~CacheSocket() {
  Signal(stop_);
  worker_.Join();
  unlink(options_.path.c_str());
}

void CacheSocket::Changed() { Signal(changed_); }

std::vector<AttachedEngine> CacheSocket::engines() const {
  MutexLock lock(mu_);
  return engines_;
}

void CacheSocket::Listen() {
  std::list<Caller> callers;
  while (true) {
    // While all places are taken, further callers wait in the backlog.
    std::vector<pollfd> events = {{stop_.get(), POLLIN, 0},
                                  {changed_.get(), POLLIN, 0},
                                  {callers.size() < kMaxCallers ? listening_.get() : -1, POLLIN, 0}};
    Deadline first = Deadline::At(TimePoint::max());
    for (const Caller& caller : callers) {
      events.push_back({caller.socket.fd(), POLLIN, 0});
      if (!caller.greeted) first = std::min(first, caller.hello_by);
    }
    const bool timed = first < Deadline::At(TimePoint::max());
    poll(events.data(), events.size(), timed ? PollMs(first.Left(*options_.clock)) : -1);
    if (events[0].revents != 0) return;
    if (events[1].revents != 0) Drain(changed_);

    auto event = events.begin() + 3;
    for (auto caller = callers.begin(); caller != callers.end(); ++event) {
      Status status = event->revents != 0 ? Hear(*caller) : OkStatus();
      if (status.ok() && !caller->greeted && caller->hello_by.Passed(*options_.clock)) {
        status = Status::DeadlineExceeded("deadline", "no hello came");
      }
      if (status.ok()) status = HandOut(*caller);
      if (!status.ok()) LogInfo("engine_detached", "pid={} why=\"{}\"", caller->shown.pid, status.ToString());
      caller = status.ok() ? std::next(caller) : callers.erase(caller);
    }
    if (events[2].revents != 0) TakeCallers(callers);
    Show(callers);
  }
}

// The process has no descriptor left, and the caller that wants one keeps the listening socket readable.
void CacheSocket::WaitForDescriptors() {
  pollfd stop{stop_.get(), POLLIN, 0};
  poll(&stop, 1, /*timeout=*/100);
}

void CacheSocket::TakeCallers(std::list<Caller>& callers) {
  while (callers.size() < kMaxCallers) {
    UniqueFd fd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid() && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!fd.valid() && errno != EAGAIN) WaitForDescriptors();
    if (!fd.valid()) return;
    Result<MessageSocket> socket = MessageSocket::Create(std::move(fd));
    if (!socket.ok()) return;
    if (const Status peer = socket->CheckPeer(); !peer.ok()) {
      (void)socket->Send(BytesOf(CacheWelcome{.outcome = ToShm(peer)}));
      continue;
    }
    callers.push_back({.socket = *std::move(socket),
                       .hello_by = Deadline::After(*options_.clock, kHelloPatience),
                       .wanted = nullptr,
                       .shown = {}});
    AttachedEngine& shown = callers.back().shown;
    shown.pid = callers.back().socket.PeerProcess();
    shown.since = std::chrono::system_clock::now();
  }
}

Status CacheSocket::Hear(Caller& caller) { return caller.greeted ? HearReport(caller) : Greet(caller); }

Status CacheSocket::Greet(Caller& caller) {
  CacheHello hello;
  RETURN_IF_ERROR(caller.socket.Receive(std::as_writable_bytes(std::span(&hello, 1)),
                                        Deadline::At(options_.clock->Now()), *options_.clock));
  Status outcome = CheckHello(hello);
  if (outcome.ok() && hello.wants_number == 1) {
    caller.wants_one = true;
    caller.wanted = store_.FindNumber(hello.number);
    if (caller.wanted == nullptr) {
      outcome = Status::NotFound("version_not_held", fmt::format("the daemon does not hold version {}", hello.number));
    }
  }
  RETURN_IF_ERROR(caller.socket.Send(BytesOf(CacheWelcome{.outcome = ToShm(outcome),
                                                          .phase = static_cast<std::uint32_t>(options_.phase()),
                                                          .instance = options_.instance.value})));
  if (const auto live = store_.Live()) caller.found = live->sequence;
  caller.greeted = true;
  return outcome;
}

Status CacheSocket::HearReport(Caller& caller) {
  EngineReport report;
  RETURN_IF_ERROR(caller.socket.Receive(std::as_writable_bytes(std::span(&report, 1)),
                                        Deadline::At(options_.clock->Now()), *options_.clock));
  if (caller.reported || report.sequence != caller.handed_out) {
    return Status::DataLoss("bad_message", fmt::format("a report on {}, want {}", report.sequence, caller.handed_out));
  }
  ASSIGN_OR_RETURN(caller.shown.run, FromRunText(report.live_run));
  caller.shown.number = report.live_number;
  caller.shown.last_error = FromShm(report.outcome);
  caller.reported = true;
  return OkStatus();
}

Status CacheSocket::HandOut(Caller& caller) {
  if (!caller.greeted || !caller.reported) return OkStatus();
  std::optional<LiveObject> next;
  if (caller.wants_one) {
    if (caller.wanted != nullptr) next = LiveObject{1, CacheChange::kHeld, std::move(caller.wanted)};
  } else if (options_.phase() == CachePhase::kHolding) {
    next = store_.Live();
  }
  if (!next || next->sequence == caller.handed_out) return OkStatus();
  // Whoever was not here when it became live is not to take it for a change.
  if (next->sequence == caller.found) next->change = CacheChange::kHeld;
  RETURN_IF_ERROR(SendVersion(caller.socket, *next));
  caller.handed_out = next->sequence;
  caller.reported = false;
  return OkStatus();
}

void CacheSocket::Show(const std::list<Caller>& callers) {
  MutexLock lock(mu_);
  engines_.clear();
  for (const Caller& caller : callers) {
    if (caller.greeted) engines_.push_back(caller.shown);
  }
}

}  // namespace bascule
