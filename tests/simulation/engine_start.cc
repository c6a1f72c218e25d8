#include "tests/simulation/engine_start.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "tests/simulation/engine_node.h"

namespace bascule::simulation {
namespace {

constexpr Duration kStartTime = std::chrono::seconds(5);
constexpr Duration kFleetTime = std::chrono::seconds(20);  // until somebody has brought what the fleet has
constexpr Duration kLookAgain = std::chrono::seconds(1);
constexpr Duration kRestartAfter = std::chrono::milliseconds(300);

std::size_t FlipCount(const WeightReceiver& receiver) { return receiver.status().flip_count; }

// What a daemon has live: whoever attaches from then on gets nothing older.
struct Floor {
  std::shared_ptr<EngineNode> daemon;  // the process; another one at its address has its own
  std::optional<WeightVersion> live;
  bool behind = false;
  std::size_t flips = 0;
  std::uint64_t mark = 0;  // of any change
};

Floor FloorOf(const std::shared_ptr<EngineNode>& daemon, Clock& clock) {
  if (daemon == nullptr) return {};
  const Result<StatusChanges> now = daemon->receiver().ChangesSince(0, Deadline::At(clock.Now()));
  if (!now.ok()) return {};
  const ReceiverStatus& status = now->statuses.back();
  return {daemon, status.live, status.required.has_value(), status.flip_count, now->mark};
}

}  // namespace

ArtifactFingerprint EngineStart::Fingerprint(int ranks) {
  return {.architecture = "Simulated", .tensor = ranks, .dtype = "BF16,F32", .quantization = "none"};
}

EngineStart::EngineStart(EngineStartOptions options, const EngineSurroundings& surroundings, WeightReceiver& receiver,
                         Watch watch, Clock& clock)
    : options_(std::move(options)),
      surroundings_(surroundings),
      receiver_(receiver),
      watch_(std::move(watch)),
      clock_(clock) {}

EngineStart::~EngineStart() = default;

void EngineStart::Run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const Status begun = Begin(stop);
    if (begun.ok()) return;
    LogInfo("engine_not_started", "address={} why=\"{}\"", options_.address, begun.ToString());
    member_.reset();
    follower_.reset();
    clock_.SleepUntil(clock_.Now() + kRestartAfter, stop);
  }
}

Status EngineStart::Begin(const std::stop_token& stop) {
  Status first = Status::NotFound("daemon_absent");
  if (!options_.socket.empty()) first = AttachToDaemon(stop);
  if (first.reason() == "daemon_absent") {
    if (options_.joins) return JoinFleet(stop);
    if (options_.load) return options_.load();
  }
  return first.ok() || options_.socket.empty() ? OkStatus() : first;
}

Status EngineStart::AttachToDaemon(const std::stop_token& stop) {
  follower_ = std::make_unique<CacheFollower>(CacheFollowerOptions{.socket = options_.socket,
                                                                   .fingerprint = Fingerprint(options_.ranks),
                                                                   .check = options_.check,
                                                                   .adopt_timeout = kPublishTime,
                                                                   .first_retry = std::chrono::milliseconds(50),
                                                                   .retry_cap = std::chrono::seconds(1)},
                                              receiver_, clock_);
  const Floor floor = FloorOf(surroundings_.engine_at(options_.daemon), clock_);
  const Result<WeightVersion> attached = follower_->Attach(Deadline::After(clock_, kStartTime), stop);
  RETURN_IF_ERROR(attached.status());
  const Floor now = FloorOf(surroundings_.engine_at(options_.daemon), clock_);
  if (floor.daemon == nullptr || now.daemon != floor.daemon || now.flips != floor.flips || !floor.live)
    return OkStatus();
  if (*attached == *floor.live && !(floor.behind && now.mark == floor.mark)) return OkStatus();
  watch_.violation("daemon",
                   fmt::format("{} gets {} from a daemon that has {} live{}", options_.address, attached->ToString(),
                               floor.live->ToString(), floor.behind ? " and is behind its fleet" : ""));
  return OkStatus();
}

Status EngineStart::JoinFleet(const std::stop_token& stop) {
  FleetLink& link = *this;
  member_ = std::make_unique<FleetMember>(FleetMemberOptions{.address = options_.address,
                                                             .call_timeout = std::chrono::seconds(1),
                                                             .first_retry = std::chrono::milliseconds(100),
                                                             .retry_cap = std::chrono::seconds(2)},
                                          receiver_, link, clock_);
  ASSIGN_OR_RETURN(const FleetWelcome welcome, member_->Join(Deadline::After(clock_, kStartTime), stop));
  if (!welcome.required) return options_.load ? options_.load() : OkStatus();
  const Status ready = AwaitReady(stop);
  waits_for_.reset();
  return ready;
}

// A publisher may come to lack the bytes of what it was going to send.
Status EngineStart::AwaitReady(const std::stop_token& stop) {
  const Deadline deadline = Deadline::After(clock_, kFleetTime);
  std::uint64_t seen = 0;
  std::optional<WeightVersion> fetched;
  while (!receiver_.status().Ready()) {
    if (stop.stop_requested()) return Status::Cancelled("cancelled");
    if (deadline.Passed(clock_)) return Status::DeadlineExceeded("deadline", "no version of the fleet came in time");
    waits_for_ = member_->welcome();
    if (waits_for_->required && waits_for_->required != fetched && !waits_for_->publisher_sends) {
      const std::optional<WeightVersion> wanted = waits_for_->required;
      if (FetchFrom(*waits_for_).ok()) fetched = wanted;
    }
    const Deadline look = Deadline::After(clock_, kLookAgain);
    if (const auto mark = receiver_.WaitForChange(seen, look); mark.ok()) seen = *mark;
  }
  return OkStatus();
}

Status EngineStart::FetchFrom(const FleetWelcome& welcome) {
  const PeerRequest request{.to = options_.address, .first = false, .version = welcome.required};
  Status fetched = Status::NotFound("version_not_live", "nobody has it");
  for (const std::string& holder : welcome.holders) {
    fetched = surroundings_.fetch(holder, request, Deadline::After(clock_, kStartTime));
    if (fetched.ok()) break;
  }
  return fetched;
}

// A replica that has heard what it lacks does not call itself ready before that, or something newer, is live.
Result<FleetWelcome> EngineStart::Join(const FleetHeartbeat& heartbeat, Deadline deadline) {
  if (heartbeat.ready && live_when_required_ == heartbeat.live && rows_when_required_ == FlipCount(receiver_)) {
    watch_.violation("fleet", fmt::format("{} is ready with {} and knows that it is behind", options_.address,
                                          heartbeat.live.ToString()));
  }
  const std::size_t flips = FlipCount(receiver_);
  const Result<FleetWelcome> welcome = surroundings_.join(heartbeat, deadline);
  live_when_required_.reset();
  if (welcome.ok() && welcome->required && *welcome->required != heartbeat.live) {
    live_when_required_ = heartbeat.live;
    rows_when_required_ = flips;
  }
  return welcome;
}

Status EngineStart::Leave(const std::string& address, InstanceId instance, Deadline deadline) {
  return surroundings_.leave(address, instance, deadline);
}

}  // namespace bascule::simulation
