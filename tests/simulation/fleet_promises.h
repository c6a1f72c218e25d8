// What a fleet promises beyond its replicas' own invariants, told of what happens and checked at once: policy `all`
// flips nobody before everybody is ready and the decision is written down, and keeps to it; policy `canary` shows a
// version to nobody but the canary before the gate has let it through, and to nobody at all after it has not.
//
// Thread-safety: confined to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/simulation/watch.h"
#include "trainer_side/publish_policy.h"
#include "trainer_side/weight_publisher.h"

namespace bascule::simulation {

// Where the publish that is under way stands; faults are counted by it.
enum class Moment : std::uint8_t {
  kNoPublish,  // the fleet may be catching up
  kEach,
  kVoting,     // all: no decision yet
  kDecided,    // all: the decision is durable
  kCanary,     // canary: the one gets it
  kJudging,    // canary: the gate looks
  kPromoting,  // canary: the rest gets it
  kGoingBack,  // canary: the one goes back
};
inline constexpr std::size_t kMoments = static_cast<std::size_t>(Moment::kGoingBack) + 1;
std::string_view MomentName(Moment moment);  // "going_back"

inline constexpr std::string_view kGateReason = "sentinel_differs";  // of the simulation's canary gate

class FleetPromises {
 public:
  FleetPromises(PublishPolicy policy, Watch watch) : policy_(policy), watch_(std::move(watch)) {}

  PublishPolicy policy() const { return policy_; }
  Moment moment() const { return moment_; }

  void PublishBegins();
  // As the replica's log says it; `version` is "run@7".
  void ReplicaIsReady(const std::string& address, std::string_view version);
  // It is in the journal from now on.
  void Decided(const WeightVersion& version, const std::vector<std::string>& replicas);
  void Judging(const std::string& canary, const WeightVersion& version);
  void Judged(const WeightVersion& version, bool let_through);
  // By a session, not by a rollback; engines that follow a cache daemon are not asked.
  void WentLive(const std::string& replica, const WeightVersion& version);
  void PublishEnded(const PublishReport& report);

 private:
  using Number = std::pair<std::string, std::uint64_t>;  // run and number

  const PublishPolicy policy_;
  const Watch watch_;
  Moment moment_ = Moment::kNoPublish;
  int under_way_ = 0;                                    // publishes
  std::set<std::pair<std::string, std::string>> ready_;  // address and version
  std::vector<WeightVersion> decided_;
  std::size_t decided_before_ = 0;               // the publish under way
  std::map<std::string, std::string> canaries_;  // by version and digest
  std::set<std::string> let_through_;
  std::set<std::string> refused_;
};

}  // namespace bascule::simulation
