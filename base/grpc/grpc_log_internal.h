// The log lines of gRPC and protobuf become debug lines of ours: what goes wrong there reaches the caller as a Status
// already.
//
// Thread-safety: thread-safe.
#pragma once

namespace bascule {

// Before the first use of gRPC; further calls do nothing.
void RouteGrpcLog();

}  // namespace bascule
