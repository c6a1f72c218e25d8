// What a fleet says between sessions, to protobuf and back.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include "bascule/v1/fleet.pb.h"
#include "bridge/session/fleet_messages.h"

namespace bascule {

v1::JoinRequest ToProto(const FleetHeartbeat& heartbeat);
void ToProto(const FleetWelcome& welcome, v1::JoinResponse& out);
void ToProto(const WeightVersion& version, v1::VersionId& out);

// Each: DataLoss "bad_message", with the field.
Result<FleetHeartbeat> FromProto(const v1::JoinRequest& proto);
Result<FleetWelcome> FromProto(const v1::JoinResponse& proto);
Result<WeightVersion> FromProto(const v1::VersionId& proto);

}  // namespace bascule
