// What a publisher asks of a replica between sessions: to go back to the version it has kept.
#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "bridge/send/cancellation.h"
#include "bridge/send/replica_connection.h"
#include "bridge/session/flip_report.h"
#include "bridge/session/messages.h"

namespace bascule {

// `request` lacks only how much time is left. `connection` is open and has no session. A refusal leaves the connection
// open; any other failure closes it.
//
// FailedPrecondition "version_not_live"  `from` is not live there
// what WeightReceiver::Rollback says; Unavailable "peer_lost"; DeadlineExceeded "deadline"; Cancelled "cancelled"
Result<FlipReport> RollBackReplica(ReplicaConnection& connection, RollBack request, Deadline deadline,
                                   const StopSignal& stop = {});

}  // namespace bascule
