#include "tests/simulation/fleet_promises.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace bascule::simulation {
namespace {

constexpr std::array<std::string_view, kMoments> kNames = {"no_publish", "each",    "voting",    "decided",
                                                           "canary",     "judging", "promoting", "going_back"};

std::string KeyOf(const WeightVersion& version) {
  return fmt::format("{} {}", version.ToString(), version.digest.ToHex());
}

bool IsNumber(const WeightVersion& version, const WeightVersion& other) {
  return version.run == other.run && version.number == other.number;
}

}  // namespace

std::string_view MomentName(Moment moment) { return kNames.at(static_cast<std::size_t>(moment)); }

void FleetPromises::PublishBegins() {
  ++under_way_;
  constexpr std::array kFirst = {Moment::kEach, Moment::kVoting, Moment::kCanary};
  moment_ = kFirst.at(static_cast<std::size_t>(policy_));
  decided_before_ = decided_.size();
}

void FleetPromises::ReplicaIsReady(const std::string& address, std::string_view version) {
  ready_.emplace(address, version);
}

void FleetPromises::Decided(const WeightVersion& version, const std::vector<std::string>& replicas) {
  if (moment_ == Moment::kVoting) moment_ = Moment::kDecided;  // else the fleet is caught up with what nobody had taken
  decided_.push_back(version);
  for (const std::string& replica : replicas) {
    if (ready_.contains({replica, version.ToString()})) continue;
    watch_.violation("all", fmt::format("{} is decided, and {} was never ready", version.ToString(), replica));
  }
}

void FleetPromises::Judging(const std::string& canary, const WeightVersion& version) {
  moment_ = Moment::kJudging;
  if (canaries_[KeyOf(version)] != canary) {
    watch_.violation("canary",
                     fmt::format("the gate looks at {}, where {} never went live", canary, version.ToString()));
  }
}

void FleetPromises::Judged(const WeightVersion& version, bool let_through) {
  moment_ = let_through ? Moment::kPromoting : Moment::kGoingBack;
  (let_through ? let_through_ : refused_).insert(KeyOf(version));
}

void FleetPromises::WentLive(const std::string& replica, const WeightVersion& version) {
  if (version.run != "run") return;  // base weights
  if (policy_ == PublishPolicy::kAll && std::ranges::find(decided_, version) == decided_.end()) {
    watch_.violation("all", fmt::format("{} flips to {}, which is in no journal", replica, version.ToString()));
  }
  if (policy_ != PublishPolicy::kCanary) return;
  const std::string key = KeyOf(version);
  const std::string& canary = canaries_.try_emplace(key, replica).first->second;
  if (refused_.contains(key)) {
    watch_.violation("canary", fmt::format("{} flips to {}, which the gate has refused", replica, version.ToString()));
  }
  if (canary != replica && !let_through_.contains(key)) {
    watch_.violation("canary",
                     fmt::format("{} flips to {}, which is {}'s to try", replica, version.ToString(), canary));
  }
}

void FleetPromises::PublishEnded(const PublishReport& report) {
  if (--under_way_ == 0) moment_ = Moment::kNoPublish;
  const auto is_number = [&](const WeightVersion& version) { return IsNumber(version, report.version); };
  const bool decided = std::ranges::any_of(decided_, is_number);
  const bool decided_now =
      std::any_of(decided_.begin() + static_cast<std::ptrdiff_t>(decided_before_), decided_.end(), is_number);
  const bool refused = refused_.contains(KeyOf(report.version));
  for (const ReplicaReport& replica : report.replicas) {
    const bool missed = replica.state == ReplicaState::kMissed;
    if (policy_ == PublishPolicy::kAll && !replica.status.ok() && (missed ? !decided : decided_now)) {
      watch_.violation("all", fmt::format("{} is reported {} where {} was {}decided: {}", replica.address,
                                          ReplicaStateName(replica.state), report.version.ToString(),
                                          decided ? "" : "not ", replica.status.ToString()));
    }
    if (refused && replica.status.ok()) {
      watch_.violation("canary", fmt::format("{} is reported {} though the gate has refused {}", replica.address,
                                             ReplicaStateName(replica.state), report.version.ToString()));
    }
  }
}

}  // namespace bascule::simulation
