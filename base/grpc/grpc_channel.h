// Client channels as all of Bascule uses them: no proxy from the environment, a connection of its own (a failed attempt
// of one channel never delays another), messages up to the bound that servers share.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/peer_security.h"
#include "base/status.h"

namespace grpc {
class Channel;
}

namespace bascule {

// A peer whose host is gone says nothing: while a call is open, both sides ask so often, and wait so long for an
// answer, before the call ends as "peer_lost".
inline constexpr int kGrpcKeepaliveMs = 10'000;
inline constexpr int kGrpcKeepaliveTimeoutMs = 10'000;

// The largest message either side takes; what may be larger travels in pieces.
inline constexpr int kGrpcMessageBytes = 16 << 20;

// Shared: gRPC's stubs want it so.
//
// InvalidArgument "bad_address" | "bad_token"
// InvalidArgument "token_in_the_clear"  a token, no TLS, and an address of another host
Result<std::shared_ptr<grpc::Channel>> MakeGrpcChannel(const std::string& address, const ClientSecurity& security = {});

// As above and connected; at once "peer_unreachable" where nobody listens.
//
// Unavailable "peer_unreachable" | "name_unknown"; DeadlineExceeded "deadline"; and as MakeGrpcChannel
// Unauthenticated "tls_failed"  a certificate is not believed, or only one side speaks TLS; the message says why
Result<std::shared_ptr<grpc::Channel>> ConnectGrpcChannel(const std::string& address, Deadline deadline, Clock& clock,
                                                          const ClientSecurity& security = {});

// A deadline in gRPC's time.
std::chrono::system_clock::time_point GrpcDeadline(Deadline deadline, Clock& clock);

}  // namespace bascule
