// Stage: flip (verify -> [flip] -> decode)
//
// Back to the kept version, whoever asks for it: the engine's own operator or, over a control channel, a publisher.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "engine_side/receiver_parts.h"

namespace bascule {

// See WeightReceiver::Rollback. `why` goes into the history; OK: nobody gave a reason.
Result<FlipReport> RollBackReceiver(ReceiverParts& parts, std::optional<std::uint64_t> to, const Status& why,
                                    bool refused, Deadline deadline);

// What a publisher asked for.
//
// FailedPrecondition "version_not_live"; as WeightReceiver::Rollback
Result<FlipReport> RollBackReceiver(ReceiverParts& parts, const RollBack& request);

}  // namespace bascule
