#include "engine_side/cache_daemon/cache_follower.h"

#include <utility>

#include "base/backoff.h"
#include "base/log.h"

namespace bascule {
namespace {

constexpr Duration kConnectPatience = std::chrono::seconds(5);
constexpr Duration kIdle = std::chrono::hours(1);    // between versions; then the wait begins anew
constexpr Duration kLook = std::chrono::seconds(1);  // between tries while a publisher has its turn

}  // namespace

CacheFollower::CacheFollower(CacheFollowerOptions options, WeightReceiver& receiver, Clock& clock)
    : options_(std::move(options)), receiver_(receiver), clock_(clock) {}

CacheFollower::~CacheFollower() {
  worker_.RequestStop();
  worker_.Join();
}

Result<WeightVersion> CacheFollower::Attach(Deadline deadline, const std::stop_token& stop) {
  const Deadline connect_by = std::min(deadline, Deadline::After(clock_, kConnectPatience));
  ASSIGN_OR_RETURN(std::shared_ptr<CacheClient> client,
                   CacheClient::Connect(options_.socket, options_.number, connect_by, clock_));
  LogInfo("daemon_attached", "socket={} instance={} phase={}", options_.socket, client->daemon().ToString(),
          CachePhaseName(client->phase()));
  const std::stop_callback cancel(stop, [client] { client->Cancel(); });
  const Result<HandedOut> first = client->Next(deadline);
  if (first.status().code() == StatusCode::kDeadlineExceeded) {
    return Status::DeadlineExceeded("deadline", fmt::format("the daemon at {} handed nothing out; it was {}",
                                                            options_.socket, CachePhaseName(client->phase())));
  }
  RETURN_IF_ERROR(first.status());
  const Status taken = Take(*first, deadline, stop);
  static_cast<void>(client->Report(first->sequence, taken, receiver_.status().live));
  RETURN_IF_ERROR(taken);
  if (options_.follow && !options_.number) {
    client_ = std::move(client);
    worker_ = Worker("cache_follower", [this](const std::stop_token& own) { Follow(own); });
  }
  return first->version;
}

Status CacheFollower::CheckMatch(const HandedOut& handed_out) const {
  if (handed_out.manifest.fingerprint != options_.fingerprint) {
    return Status::FailedPrecondition(
        "fingerprint_mismatch",
        fmt::format("{}: the daemon is for {{{}}}, the engine is {{{}}}", options_.socket,
                    handed_out.manifest.fingerprint.ToString(), options_.fingerprint.ToString()));
  }
  if (handed_out.manifest.layout == receiver_.layout()) return OkStatus();
  return Status::FailedPrecondition("layout_mismatch",
                                    fmt::format("{}: the daemon cuts by other rules", options_.socket));
}

bool CacheFollower::Wanted(const HandedOut& handed_out, const ReceiverStatus& status) const {
  if (!status.live) return true;
  if (*status.live == handed_out.version) return false;
  const bool same_run = status.live->run == handed_out.version.run;
  switch (handed_out.change) {
    case CacheChange::kHeld:
      return same_run && handed_out.version.number > status.live->number;
    case CacheChange::kFlip:
      return !same_run || handed_out.version.number > status.live->number;
    case CacheChange::kRollback:
    case CacheChange::kRefused:
      return status.kept == handed_out.version;
  }
  return false;
}

Status CacheFollower::TakeOnce(const HandedOut& handed_out, const ReceiverStatus& status, Deadline deadline,
                               const std::stop_token& stop) {
  const bool refused = handed_out.change == CacheChange::kRefused;
  if ((refused || handed_out.change == CacheChange::kRollback) && status.kept == handed_out.version) {
    return receiver_.Rollback(handed_out.version.number, deadline, refused).status();
  }
  // What the host's daemon has gone on to is what this engine should serve: until it does it is out of rotation.
  if (status.live) receiver_.RequireInPlaceOf(status.live, handed_out.version);
  ASSIGN_OR_RETURN(auto memory, handed_out.Map());
  return receiver_
      .Adopt({.version = handed_out.version,
              .digests = handed_out.manifest.digests,
              .memory = {.ranks = std::move(memory), .check = options_.check}},
             deadline, stop)
      .status();
}

// While a publisher has its turn this waits: it may bring the same version.
Status CacheFollower::Take(const HandedOut& handed_out, Deadline deadline, const std::stop_token& stop) {
  RETURN_IF_ERROR(CheckMatch(handed_out));
  while (true) {
    const auto mark = receiver_.ChangesSince(0, deadline);
    RETURN_IF_ERROR(mark.status());
    const ReceiverStatus status = receiver_.status();
    if (!Wanted(handed_out, status)) return OkStatus();
    const Status taken = TakeOnce(handed_out, status, deadline, stop);
    const bool busy = taken.code() == StatusCode::kUnavailable || taken.reason() == "flip_in_progress" ||
                      taken.reason() == "already_live";
    if (!busy || deadline.Passed(clock_) || stop.stop_requested()) return taken;
    static_cast<void>(receiver_.WaitForChange(mark->mark, std::min(deadline, Deadline::After(clock_, kLook))));
  }
}

void CacheFollower::Follow(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::shared_ptr<CacheClient> client = std::exchange(client_, nullptr);
    if (client == nullptr) client = Reconnect(stop);
    if (client == nullptr) return;
    const std::stop_callback cancel(stop, [client] { client->Cancel(); });
    const Status why = FollowOver(*client, stop);
    if (!stop.stop_requested()) LogWarn("daemon_lost", "socket={} why=\"{}\"", options_.socket, why.ToString());
  }
}

Status CacheFollower::FollowOver(CacheClient& client, const std::stop_token& stop) {
  while (true) {
    const Result<HandedOut> next = client.Next(Deadline::After(clock_, kIdle));
    if (next.status().code() == StatusCode::kDeadlineExceeded) continue;
    RETURN_IF_ERROR(next.status());
    const Status taken = Take(*next, Deadline::After(clock_, options_.adopt_timeout), stop);
    if (!taken.ok()) {
      LogWarn("daemon_not_followed", "version={} why=\"{}\"", next->version.ToString(), taken.ToString());
    }
    RETURN_IF_ERROR(client.Report(next->sequence, taken, receiver_.status().live));
  }
}

// Less and less often; null when it is to stop.
std::shared_ptr<CacheClient> CacheFollower::Reconnect(const std::stop_token& stop) {
  for (int failures = 1;; ++failures) {
    const TimePoint again = clock_.Now() + BackoffDelay(failures, options_.first_retry, options_.retry_cap);
    if (!clock_.SleepUntil(again, stop)) return nullptr;
    auto client =
        CacheClient::Connect(options_.socket, std::nullopt, Deadline::After(clock_, kConnectPatience), clock_);
    if (!client.ok()) continue;
    LogInfo("daemon_attached", "socket={} instance={} phase={}", options_.socket, (*client)->daemon().ToString(),
            CachePhaseName((*client)->phase()));
    return *std::move(client);
  }
}

}  // namespace bascule
