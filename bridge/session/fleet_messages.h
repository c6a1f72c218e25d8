// How replicas and their publisher keep in touch between sessions: a replica says again and again that it is there and
// what it has, and hears what the fleet has committed. Plain types; fleet.proto carries them.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "bridge/manifest/manifest.h"

namespace bascule {

struct FleetHeartbeat {
  std::string address;  // where the publisher reaches the replica
  InstanceId instance;  // of its process: another after a restart
  WeightVersion live;   // run is empty while nothing is live
  bool ready = false;
  Status last_error;
};

struct FleetWelcome {
  // What the fleet has committed and the replica lacks, as far as the heartbeat told: it is not ready without.
  std::optional<WeightVersion> required;
  // Replicas that have it live: for one whose publisher does not have its bytes any more.
  std::vector<std::string> holders;
  bool publisher_sends = false;  // the publisher brings `required` by itself
  Duration heartbeat{};          // the next one is due after this time
};

// A replica asks another for what that has live.
struct PeerRequest {
  std::string to;      // the replica's own address
  bool first = false;  // only where nothing is live there: what a publisher has brought meanwhile stays
  std::optional<WeightVersion> version;  // only this one: the peer may have gone on, be it to one that is on trial
};

// The replica's way to its publisher. Thread-safety: thread-safe.
class FleetLink {
 public:
  virtual ~FleetLink() = default;
  // Unavailable "peer_unreachable" | "peer_lost"; DeadlineExceeded "deadline"; InvalidArgument "bad_address"
  // ResourceExhausted "fleet_full"
  virtual Result<FleetWelcome> Join(const FleetHeartbeat& heartbeat, Deadline deadline) = 0;
  // The replica goes away for good.
  virtual Status Leave(const std::string& address, InstanceId instance, Deadline deadline) = 0;
};

}  // namespace bascule
