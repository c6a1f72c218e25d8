// What a publisher asks of a replica between sessions: to go back to the version it has kept.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "bridge/send/cancellation.h"
#include "bridge/send/replica_connection.h"
#include "bridge/session/flip_report.h"

namespace bascule {

// `connection` is open and has no session. `why` goes into the replica's history. A refusal leaves the connection open;
// any other failure closes it.
//
// FailedPrecondition "version_not_live"  `from` is not live there
// what WeightReceiver::Rollback says; Unavailable "peer_lost"; DeadlineExceeded "deadline"; Cancelled "cancelled"
Result<FlipReport> RollBackReplica(ReplicaConnection& connection, const WeightVersion& from, std::uint64_t to,
                                   const Status& why, Deadline deadline, const StopSignal& stop = {});

}  // namespace bascule
