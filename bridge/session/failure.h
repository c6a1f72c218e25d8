// Every reason with which a session, its control channel or the receiver can fail: one list, which docs/protocol.md
// prints and tests compare with it and with the sources. Reasons of layouts, plans and manifests pass through a session
// unchanged and are listed where they are made (bridge/plan/planner.h, bridge/manifest/manifest.h).
//
// Thread-safety: thread-safe (pure data).
#pragma once

#include <span>
#include <string_view>

#include "base/status.h"

namespace bascule {

struct FailureReason {
  StatusCode code;
  std::string_view reason;
  std::string_view meaning;
};

// Sorted by reason.
std::span<const FailureReason> SessionFailures();

}  // namespace bascule
