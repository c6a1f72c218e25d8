// Stage: staging (daemon -> [staging] -> verify -> flip)
//
// A version that is lent goes live by the session that every version takes: offered, staged, sealed, verified, flipped.
// Only that nobody sends: this process speaks the publisher's part.
#pragma once

#include <stop_token>

#include "base/clock.h"
#include "base/status.h"
#include "engine_side/receiver_parts.h"
#include "engine_side/weight_receiver.h"

namespace bascule {

// See WeightReceiver::Adopt. Thread-safety: thread-safe.
Result<FlipReport> AdoptVersion(ReceiverParts& parts, LentVersion version, Deadline deadline, std::stop_token stop);

}  // namespace bascule
