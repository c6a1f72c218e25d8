// What became of a publish, as trainer rank 0 tells it to the other ranks and as they report it.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include "bridge/session/group_messages.h"
#include "trainer_side/weight_publisher.h"

namespace bascule {

GroupOutcome OutcomeOf(const PublishReport& report);  // without a round
PublishReport ReportOf(const GroupOutcome& outcome);

}  // namespace bascule
