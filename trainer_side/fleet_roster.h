// Who is in a fleet and what each has: pure state, told of events and of the time. Replicas are *listed*, by the
// publisher's options, or have *joined*, which lasts while their heartbeats come. One that keeps failing is left alone
// for a while, longer each time.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bridge/session/fleet_messages.h"
#include "trainer_side/publish_policy.h"

namespace bascule {

struct FleetOptions {
  Duration heartbeat = std::chrono::seconds(2);
  int missed_heartbeats = 5;  // after so many a replica that has joined is lost
  Duration first_retry = std::chrono::seconds(1);
  Duration retry_cap = std::chrono::minutes(1);
  int failures_before_rest = 3;  // a publish tries again at once before that
  std::size_t max_members = 10'000;
};

// One replica as the fleet view shows it.
struct FleetRow {
  std::string address;
  // committed aborted missed rolled_back: what the last publish did there; or, if that is not the last word, joined
  // publishing behind resting lost
  std::string state;
  std::optional<WeightVersion> live;  // as far as the publisher knows
  std::uint64_t staleness = 0;        // newest number of the live run less the live number
  bool ready = false;                 // as it said itself, or, where it says nothing, as the publisher sees it
  int failures = 0;                   // in a row
  Duration retry_in{};                // of one that rests
  Status last_error;
  std::string phase;  // of last_error, where a publish failed
};

class FleetRoster {
 public:
  FleetRoster(FleetOptions options, const std::vector<std::string>& listed);

  // ResourceExhausted "fleet_full"; InvalidArgument "bad_address"  none
  Status Join(const FleetHeartbeat& heartbeat, TimePoint now);
  // As the answer to a heartbeat. `publisher_sends`: its bytes are at hand.
  FleetWelcome WelcomeOf(const std::string& address, bool publisher_sends, TimePoint now) const;
  // A listed replica stays in the fleet. Another process at the address by now: nothing happens.
  void Leave(const std::string& address, InstanceId instance);

  // Who takes part in a publish: neither lost nor resting.
  std::vector<std::string> Targets(TimePoint now) const;
  // Who lacks what the fleet has committed, and may be tried.
  std::vector<std::string> Due(TimePoint now) const;
  // When Due may give more without an event in between.
  std::optional<TimePoint> NextDue(TimePoint now) const;

  void Began(const std::vector<std::string>& replicas);
  // What a publish or a catch-up did to one replica.
  void Ended(const std::string& address, const Status& status, ReplicaState state, const std::string& phase,
             const WeightVersion& live, TimePoint now);
  // The fleet's version from now on; who has another one live is behind.
  void Commit(const WeightVersion& version);
  const std::optional<WeightVersion>& committed() const { return committed_; }
  // The highest number of its run that was committed; 0 without one.
  std::uint64_t highest() const { return newest_; }

  std::vector<FleetRow> Rows(TimePoint now) const;

 private:
  struct Member {
    std::string address;
    bool listed = false;
    std::optional<TimePoint> heard;  // last heartbeat
    InstanceId instance;
    TimePoint since{};  // of this instance
    std::optional<WeightVersion> live;
    bool ready = false;
    bool publishing = false;
    std::optional<ReplicaState> last;
    int failures = 0;
    TimePoint retry_at{};
    Status last_error;
    std::string phase;
  };

  Member* Find(const std::string& address);
  const Member* Find(const std::string& address) const;
  bool Present(const Member& member, TimePoint now) const;
  bool Rests(const Member& member, TimePoint now) const;
  bool Behind(const Member& member) const;
  void Failed(Member& member, TimePoint now) const;
  std::string StateOf(const Member& member, TimePoint now) const;
  std::vector<std::string> Holders(const std::string& but, TimePoint now) const;

  const FleetOptions options_;
  std::vector<Member> members_;  // listed ones first, in their order
  std::optional<WeightVersion> committed_;
  std::uint64_t newest_ = 0;  // number of committed_'s run that was committed or rolled back from
};

}  // namespace bascule
