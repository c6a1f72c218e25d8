// How a publish is carried out: ReplicaDriver leads it, MemberDriver takes part in one that another process leads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bridge/send/cancellation.h"
#include "trainer_side/pending_publish.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {

// One publish, or a catch-up: a version that was published before goes to replicas that lack it.
struct PublishJob {
  PublishRequest request;
  WeightVersion newest;                         // the last version that was packed and sealed
  std::vector<std::string> replicas;            // addresses
  std::optional<WeightVersion> committed = {};  // by the fleet
  std::uint64_t highest = 0;  // number of that run that was committed, though perhaps nobody was there yet
  std::optional<WeightVersion> again;
};

// Thread-safety: confined to the publish thread.
class PublishDriver {
 public:
  virtual ~PublishDriver() = default;
  // From beginning to end; `pending` hears when the tensors may change.
  virtual PublishReport Run(const PublishJob& job, PendingPublish& pending, Deadline deadline,
                            const Cancellation& cancel) = 0;
  // The bytes of that version are at hand still.
  virtual bool CanSendAgain(const WeightVersion& /*version*/) const { return false; }
  // Every replica back to the version it has kept, which is the same one for all.
  virtual Result<FleetRollback> RollBack(const std::vector<std::string>& /*replicas*/,
                                         std::optional<std::uint64_t> /*to*/, Deadline /*deadline*/,
                                         const Cancellation& /*cancel*/) {
    return Status::Unimplemented("not_the_leader", "trainer rank 0 leads");
  }
  // Of a rank that follows, between publishes: its part is asked for again when the leader catches a replica up.
  // Attend gives it until it is cancelled, or the leader is lost.
  virtual bool CanAttend() const { return false; }
  virtual void Attend(const Cancellation& /*cancel*/) {}
  // As WeightPublisher's. Thread-safe.
  virtual std::string group_address() const { return ""; }
};

}  // namespace bascule
