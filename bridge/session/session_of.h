// Which session a message belongs to.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include "base/ids.h"
#include "bridge/session/messages.h"

namespace bascule {

// Zero for a message of no session, and for an Abort of a whole connection.
SessionId SessionOf(const SessionMessage& message);

}  // namespace bascule
