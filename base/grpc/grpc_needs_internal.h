// What gRPC ends the process for when it does not get it: descriptors for its wake-ups, threads for its servers. That
// they can be had is looked at before it starts, where somebody can still be told.
//
// Thread-safety: thread-safe.
#pragma once

#include "base/status.h"

namespace bascule {

// ResourceExhausted "descriptors"   looked at each time
// ResourceExhausted "thread_limit"  looked at once, before gRPC has threads of its own
Status CheckGrpcNeeds();

// For a server, whose threads come on top of those.
//
// ResourceExhausted "thread_limit"
Status CheckGrpcServerNeeds();

}  // namespace bascule
