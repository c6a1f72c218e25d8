// A replica's membership in a fleet: says to the publisher, again and again, that it is there and what it has; hears
// what the fleet has committed, and takes itself out of rotation while it lacks that.
//
// A publisher that cannot be reached is asked again, less and less often; the replica serves on with what it has.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/worker.h"
#include "bridge/session/fleet_messages.h"
#include "engine_side/weight_receiver.h"

namespace bascule {

struct FleetMemberOptions {
  std::string address;  // where the publisher reaches this replica
  Duration call_timeout = std::chrono::seconds(5);
  Duration first_retry = std::chrono::milliseconds(500);
  Duration retry_cap = std::chrono::seconds(30);
};

// Thread-safety: confined to its owner, but for welcome; a thread of its own keeps in touch.
class FleetMember {
 public:
  // Both borrowed; `receiver` and `link` outlive it.
  FleetMember(FleetMemberOptions options, WeightReceiver& receiver, FleetLink& link, Clock& clock = Clock::Real());
  ~FleetMember();  // leaves the fleet

  // Waits until the publisher has answered for the first time; from then on the thread keeps in touch. What the answer
  // requires has been told to the receiver.
  //
  // what the last try said, with DeadlineExceeded "deadline" or Cancelled "cancelled"
  Result<FleetWelcome> Join(Deadline deadline, const std::stop_token& stop);

  // What the publisher said last.
  FleetWelcome welcome() const EXCLUDES(mu_);

 private:
  Result<FleetWelcome> Say();
  void KeepInTouch(Duration first, const std::stop_token& stop);

  const FleetMemberOptions options_;
  const InstanceId instance_ = InstanceId::Mint();
  WeightReceiver& receiver_;
  FleetLink& link_;
  Clock& clock_;
  mutable Mutex mu_;
  FleetWelcome welcome_ GUARDED_BY(mu_);
  Worker worker_;
};

}  // namespace bascule
