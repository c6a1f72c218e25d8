#include "trainer_side/fleet_roster.h"

#include <algorithm>

#include "base/backoff.h"
#include "base/error_text.h"

namespace bascule {
namespace {

constexpr std::size_t kTextBytes = 1024;  // of each member's error

bool SameVersion(const WeightVersion& a, const WeightVersion& b) {
  const bool same_bytes = a.digest.IsZero() || b.digest.IsZero() || a.digest == b.digest;
  return a.run == b.run && a.number == b.number && same_bytes;
}

// It could not be reached, went away or did not answer. Whatever else ends a session is not the replica's own weakness.
bool IsLoss(const Status& status) {
  return (status.code() == StatusCode::kDeadlineExceeded && status.reason() != "group_incomplete") ||
         (status.code() == StatusCode::kUnavailable && status.reason() != "publisher_busy" &&
          status.reason() != "too_few_replicas" && status.reason() != "rank_lost");
}

}  // namespace

FleetRoster::FleetRoster(FleetOptions options, const std::vector<std::string>& listed) : options_(options) {
  for (const std::string& address : listed) members_.push_back({.address = address, .listed = true});
}

Status FleetRoster::Join(const FleetHeartbeat& heartbeat, TimePoint now) {
  if (heartbeat.address.empty()) return Status::InvalidArgument("bad_address", "a replica without an address");
  Member* found = Find(heartbeat.address);
  if (found == nullptr) {
    if (members_.size() >= options_.max_members) {
      std::erase_if(members_, [&](const Member& member) { return !Present(member, now); });
    }
    if (members_.size() >= options_.max_members) {
      return Status::ResourceExhausted("fleet_full", fmt::format("members={}", members_.size()));
    }
    found = &members_.emplace_back(Member{.address = heartbeat.address});
  }
  Member& member = *found;
  if (member.instance != heartbeat.instance) {
    // Back already: it fell over soon after it had come.
    const bool fell = member.instance != InstanceId{} && now - member.since < options_.retry_cap;
    if (fell) Failed(member, now);
    member.instance = heartbeat.instance;
    member.since = now;
  } else if (now - member.since >= options_.retry_cap) {
    member.failures = 0;
  }
  member.heard = now;
  member.ready = heartbeat.ready;
  member.live.reset();
  if (!heartbeat.live.run.empty()) member.live = heartbeat.live;
  if (!heartbeat.last_error.ok()) member.last_error = WithShortText(heartbeat.last_error, kTextBytes);
  return OkStatus();
}

FleetWelcome FleetRoster::WelcomeOf(const std::string& address, bool publisher_sends, TimePoint now) const {
  FleetWelcome welcome;
  welcome.heartbeat = options_.heartbeat;
  welcome.publisher_sends = publisher_sends;
  const Member* member = Find(address);
  if (member == nullptr || !Behind(*member)) return welcome;
  welcome.required = committed_;
  welcome.holders = Holders(address, now);
  return welcome;
}

void FleetRoster::Leave(const std::string& address, InstanceId instance) {
  Member* member = Find(address);
  if (member == nullptr || member->instance != instance) return;
  if (member->listed) {
    *member = Member{.address = address, .listed = true};
  } else {
    members_.erase(members_.begin() + (member - members_.data()));
  }
}

std::vector<std::string> FleetRoster::Targets(TimePoint now) const {
  std::vector<std::string> targets;
  for (const Member& member : members_) {
    const bool rests = member.failures >= options_.failures_before_rest && Rests(member, now);
    if (Present(member, now) && !rests) targets.push_back(member.address);
  }
  return targets;
}

std::vector<std::string> FleetRoster::Due(TimePoint now) const {
  std::vector<std::string> due;
  for (const Member& member : members_) {
    if (Present(member, now) && Behind(member) && !Rests(member, now)) due.push_back(member.address);
  }
  return due;
}

std::optional<TimePoint> FleetRoster::NextDue(TimePoint now) const {
  std::optional<TimePoint> next;
  for (const Member& member : members_) {
    if (!Present(member, now) || !Behind(member)) continue;
    next = std::min(next.value_or(TimePoint::max()), std::max(member.retry_at, now));
  }
  return next;
}

void FleetRoster::Began(const std::vector<std::string>& replicas) {
  for (const std::string& address : replicas) {
    if (Member* member = Find(address)) member->publishing = true;
  }
}

void FleetRoster::Ended(const std::string& address, const Status& status, ReplicaState state, const std::string& phase,
                        const WeightVersion& live, TimePoint now) {
  Member* found = Find(address);
  if (found == nullptr) return;  // it has left
  Member& member = *found;
  member.publishing = false;
  member.last = state;
  if (!live.run.empty()) member.live = live;
  if (!status.ok()) {
    member.last_error = WithShortText(status, kTextBytes);
    member.phase = phase;
    if (IsLoss(status)) {
      Failed(member, now);
    } else {
      member.retry_at = now + options_.first_retry;  // it refuses: not at once again
    }
    return;
  }
  member.retry_at = now;
  member.ready = true;
  // One that tells of itself has to stand for a while first.
  if (!member.heard) member.failures = 0;
}

void FleetRoster::Commit(const WeightVersion& version) {
  const bool same_run = committed_ && committed_->run == version.run;
  newest_ = same_run ? std::max(newest_, version.number) : version.number;
  committed_ = version;
}

std::vector<FleetRow> FleetRoster::Rows(TimePoint now) const {
  std::vector<FleetRow> rows;
  for (const Member& member : members_) {
    FleetRow row{.address = member.address,
                 .state = StateOf(member, now),
                 .live = member.live,
                 .ready = member.ready && Present(member, now) && !Behind(member),
                 .failures = member.failures,
                 .last_error = member.last_error,
                 .phase = member.phase};
    if (Rests(member, now)) row.retry_in = member.retry_at - now;
    if (member.live && committed_ && member.live->run == committed_->run && member.live->number < newest_) {
      row.staleness = newest_ - member.live->number;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

FleetRoster::Member* FleetRoster::Find(const std::string& address) {
  const auto found =
      std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.address == address; });
  return found == members_.end() ? nullptr : &*found;
}

const FleetRoster::Member* FleetRoster::Find(const std::string& address) const {
  return const_cast<FleetRoster*>(this)->Find(address);  // NOLINT: changes nothing
}

bool FleetRoster::Present(const Member& member, TimePoint now) const {
  if (member.listed) return true;
  return member.heard && now - *member.heard <= options_.heartbeat * options_.missed_heartbeats;
}

bool FleetRoster::Rests(const Member& member, TimePoint now) const { return member.retry_at > now; }

// A version with a higher number than any that was committed is one that is being published at this moment.
bool FleetRoster::Behind(const Member& member) const {
  if (!committed_ || (member.live && SameVersion(*member.live, *committed_))) return false;
  if (!member.live) return true;
  if (member.live->run != committed_->run) return !member.publishing;
  return member.live->number <= newest_;
}

void FleetRoster::Failed(Member& member, TimePoint now) const {
  ++member.failures;
  member.retry_at = now + BackoffDelay(member.failures, options_.first_retry, options_.retry_cap);
}

std::string FleetRoster::StateOf(const Member& member, TimePoint now) const {
  if (member.publishing) return "publishing";
  if (!Present(member, now)) return "lost";
  if (Behind(member) || member.failures >= options_.failures_before_rest) {
    if (Rests(member, now)) return "resting";
    if (Behind(member)) return member.last == ReplicaState::kMissed ? "missed" : "behind";
  }
  return member.last ? std::string(ReplicaStateName(*member.last)) : "joined";
}

std::vector<std::string> FleetRoster::Holders(const std::string& but, TimePoint now) const {
  constexpr std::size_t kEnough = 8;
  std::vector<std::string> holders;
  for (const Member& member : members_) {
    if (member.address == but || holders.size() == kEnough) continue;
    if (Present(member, now) && member.live && SameVersion(*member.live, *committed_))
      holders.push_back(member.address);
  }
  return holders;
}

}  // namespace bascule
