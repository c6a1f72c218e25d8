// When the replicas of a publish flip, and who has a say in it.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <functional>
#include <stop_token>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "bridge/session/flip_report.h"

namespace bascule {

enum class PublishPolicy {
  kEach,    // every replica flips when it is ready
  kAll,     // no replica flips before all are ready; if one does not get ready none does
  kCanary,  // one flips, a gate looks at it; then the rest, or the canary goes back
};

// What a gate gets to see: a replica on which the new version is live and which serves.
struct CanaryView {
  std::string address;
  FlipReport flip;
  WeightVersion previous;  // what a refusal goes back to; without a run where nothing was live
  Deadline deadline;       // of the publish
  std::stop_token stop;    // of the publish
};

// OK: promote to the rest. An error goes into the canary's history and into the report, with its own reason. Called on
// a thread of the publisher's; waits no longer than the deadline.
using CanaryGate = std::function<Status(const CanaryView&)>;

// What became of a replica in a publish.
enum class ReplicaState {
  kCommitted,
  kAborted,     // its live version is what it was
  kMissed,      // the fleet has committed without it: out of rotation until it has the version
  kRolledBack,  // it was the canary, and the gate refused
};
std::string_view ReplicaStateName(ReplicaState state);  // "rolled_back"

}  // namespace bascule
