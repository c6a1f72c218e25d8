// Sends what is live here to another engine, as a publisher would. What arrives must have the digest that the version
// has here: memory that has rotted is not passed on.
#pragma once

#include <vector>

#include "base/clock.h"
#include "bridge/send/publish_session.h"
#include "bridge/session/fleet_messages.h"
#include "engine_side/weight_receiver.h"

namespace bascule {

// `connection` names the other engine. The live slot is leased meanwhile: the second version that comes after it here
// waits for that (the next one, where flips are in place), at most until the deadline. Nothing is sent to an engine
// that has the version live. `wanted` says what else the other engine asks for; where that is, `connection` says.
//
// FailedPrecondition "nothing_live" | "version_not_live" | "already_live"; DataLoss "digest_mismatch"; else as
// PublishSession
SendReport SendLive(WeightReceiver& receiver, const std::vector<QuantizationFamily>& families,
                    ConnectionOptions connection, Deadline deadline, const StopSignal& stop = {},
                    const PeerRequest& wanted = {});

}  // namespace bascule
