// Stage: flip (verify -> [flip] -> decode)
//
// The one place where the live version changes: at a safe point the slots exchange roles and the engine's caches are
// told, in one critical section, so that label and bytes never disagree (I9) and no step sees half of it (I5). One flip
// or rollback at a time.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine_side/engine_hooks.h"
#include "engine_side/weight_slots.h"

namespace bascule {

class FlipGate {
 public:
  FlipGate(WeightSlots& slots, EngineHooks& hooks, Clock& clock) : slots_(slots), hooks_(hooks), clock_(clock) {}

  // Makes the reserved `slot` live as `version`; after an error it is reserved still. Waits for a rollback under way.
  //
  // DeadlineExceeded "deadline"  no safe point in time; Cancelled "engine_stopping"
  Result<FlipReport> Flip(int slot, const WeightVersion& version, std::uint64_t at_step, Deadline deadline)
      EXCLUDES(mu_);

  // See WeightReceiver::Rollback.
  Result<FlipReport> Rollback(std::optional<std::uint64_t> to, Deadline deadline) EXCLUDES(mu_);

 private:
  void Leave() EXCLUDES(mu_);
  Result<FlipReport> SwapAtSafePoint(std::optional<std::uint64_t> to, Deadline deadline);

  WeightSlots& slots_;
  EngineHooks& hooks_;
  Clock& clock_;
  Mutex mu_;  // Guards `busy_`; not held at the safe point.
  CondVar left_;
  bool busy_ GUARDED_BY(mu_) = false;
};

}  // namespace bascule
