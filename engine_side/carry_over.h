// Stage: staging (transport -> [staging] -> verify)
//
// What a partial version does not bring: copied from the live version to the slot that is staged, beside what comes,
// and digested there as that is, so that the proof is of the whole version.
//
// Thread-safety: confined to the thread that prepares the slot.
#pragma once

#include <optional>
#include <stop_token>

#include "base/clock.h"
#include "base/status.h"
#include "engine_side/receive_plan.h"
#include "engine_side/staging.h"
#include "engine_side/staging_throttle.h"
#include "engine_side/verifier.h"
#include "engine_side/weight_slots.h"

namespace bascule {

// `live` is the version that an offer names as its base: run, number and digest.
//
// FailedPrecondition "wrong_base"  with both, or that nothing is live
Status CheckBase(const std::optional<WeightVersion>& live, const WeightVersion& base);

// The live version, if it is `base`.
//
// FailedPrecondition "wrong_base"
Result<WeightLease> LeaseBase(WeightSlots& slots, const WeightVersion& base);

// Borrowed until CarryOver returns.
struct CarryOverTerms {
  const ReceivePlan& plan;
  const Staging& staging;
  Verifier& verifier;  // notes every carried part
  const StagingThreads& manners;
  Clock& clock;
};

// Cancelled "cancelled" (`stop`); errors of SlotWork
Status CarryOver(const CarryOverTerms& terms, const WeightLease& base, const std::stop_token& stop);

}  // namespace bascule
