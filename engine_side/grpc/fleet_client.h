// A replica's way to the Fleet service of its publisher, and to a peer that has a version live.
#pragma once

#include <memory>
#include <stop_token>
#include <string>

#include "base/clock.h"
#include "base/peer_security.h"
#include "base/status.h"
#include "bridge/session/fleet_messages.h"

namespace bascule {

// Connects anew for every call: a publisher that has been restarted is found again.
std::unique_ptr<FleetLink> MakeGrpcFleetLink(std::string publisher, ClientSecurity security);

// Has the engine at `peer` send what it has live to the one that asks; gives what is live there then.
//
// as PeerSource.SendLive (fleet.proto); Unavailable "peer_unreachable"; DeadlineExceeded "deadline"; Cancelled
Result<WeightVersion> FetchFromPeer(const std::string& peer, const PeerRequest& request, Deadline deadline,
                                    const std::stop_token& stop, const ClientSecurity& security);

}  // namespace bascule
