// Why a channel did not come about, told apart where gRPC has one word for all: the same connection once more, by hand.
//
// Thread-safety: thread-safe.
#pragma once

#include "base/clock.h"
#include "base/net_address.h"
#include "base/peer_security.h"

namespace bascule {

// After a connection has failed. It takes no longer than `deadline`, nor than a few seconds.
//
// Unavailable "peer_unreachable"  nobody listens there, or no server of ours
// Unavailable "name_unknown"      no resolver knows what the host's name stands for, or none says so in time
// Unauthenticated "tls_failed"    one side wants TLS and the other speaks none, or a certificate is not believed: the
//                                 message says whose, and why
Status WhyNotConnected(const NetAddress& address, const ClientSecurity& security, Deadline deadline, Clock& clock);

}  // namespace bascule
