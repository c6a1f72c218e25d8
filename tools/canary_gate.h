// The gate of `publish --policy canary`: asks the canary for the log-probabilities of sentinel prompts.
//
// Thread-safety: thread-safe.
#pragma once

#include <vector>

#include "base/peer_security.h"
#include "tools/sentinels.h"
#include "trainer_side/publish_policy.h"

namespace bascule {

// DataLoss "sentinel_differs"            as CheckSentinel
// FailedPrecondition "version_not_live"  the canary answers with another version by now
// as RolloutClient::GenerateBatch
CanaryGate SentinelGate(std::vector<Sentinel> sentinels, double bound, ClientSecurity security = {});

}  // namespace bascule
