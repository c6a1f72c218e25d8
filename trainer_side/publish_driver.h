// How a publish is carried out: ReplicaDriver leads it, MemberDriver takes part in one that another process leads.
#pragma once

#include <string>

#include "base/clock.h"
#include "bridge/send/cancellation.h"
#include "trainer_side/pending_publish.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {

// Thread-safety: confined to the publish thread.
class PublishDriver {
 public:
  virtual ~PublishDriver() = default;
  // One publish from beginning to end; `pending` hears when the tensors may change. `newest` is the last version that
  // was packed and sealed.
  virtual PublishReport Run(const PublishRequest& request, const WeightVersion& newest, PendingPublish& pending,
                            Deadline deadline, const Cancellation& cancel) = 0;
  // As WeightPublisher's. Thread-safe.
  virtual std::string group_address() const { return ""; }
};

}  // namespace bascule
