// Our Status at the gRPC edge: the code has its twin, the reason travels in the details, the message is cut so that the
// trailers stay below gRPC's limit. A handler returns errors this way and never throws.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include "base/status.h"

namespace grpc {
class Status;
}

namespace bascule {

inline constexpr std::size_t kGrpcErrorTextBytes = 2048;

grpc::Status ToGrpc(const Status& status);

// An error that gRPC itself made has no reason of ours: it becomes "peer_lost" (UNAVAILABLE), "deadline", "cancelled",
// "wrong_service" (UNIMPLEMENTED), "unauthenticated", "permission_denied" or "rpc_failed".
Status FromGrpc(const grpc::Status& status);

}  // namespace bascule
