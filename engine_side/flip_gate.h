// Stage: flip (verify -> [flip] -> decode)
//
// The one place where the live version changes: at a safe point the slots exchange roles (or, in place, their bytes)
// and the engine's caches are told, in one critical section, so that label and bytes never disagree (I9) and no step
// sees half of it (I5). One flip or rollback at a time.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine_side/engine_hooks.h"
#include "engine_side/in_place_flip.h"
#include "engine_side/weight_slots.h"

namespace bascule {

// A verified version in a reserved slot.
struct StagedVersion {
  int slot = 0;
  WeightVersion version;
  HeldDigests held;
};

class FlipGate {
 public:
  // All borrowed; without `in_place` slots exchange roles.
  FlipGate(WeightSlots& slots, EngineHooks& hooks, Clock& clock, InPlaceFlip* in_place = nullptr)
      : slots_(slots), hooks_(hooks), clock_(clock), in_place_(in_place) {}

  // Makes `staged` live; after an error its slot is reserved still. Waits for a rollback under way.
  //
  // DeadlineExceeded "deadline"     no safe point in time; Cancelled "engine_stopping"
  // in place also:
  // DeadlineExceeded "live_leased"  somebody reads the live weights all the time
  // Aborted "flip_undone"; DataLoss "live_lost"  see InPlaceFlip
  Result<FlipReport> Flip(const StagedVersion& staged, std::uint64_t at_step, Deadline deadline) EXCLUDES(mu_);

  // See WeightReceiver::Rollback.
  Result<FlipReport> Rollback(std::optional<std::uint64_t> to, Deadline deadline) EXCLUDES(mu_);

 private:
  void Leave() EXCLUDES(mu_);
  Result<FlipReport> SwapKept(std::optional<std::uint64_t> to, Deadline deadline);
  // `change` makes another version live and says which.
  Result<FlipReport> AtSafePoint(std::uint64_t at_step, Deadline deadline,
                                 const std::function<Result<WeightVersion>()>& change);
  Result<WeightVersion> MakeLive(const StagedVersion& staged);
  Result<WeightVersion> MakeKeptLive();

  WeightSlots& slots_;
  EngineHooks& hooks_;
  Clock& clock_;
  InPlaceFlip* const in_place_;
  Mutex mu_;  // Guards `busy_`; not held at the safe point.
  CondVar left_;
  bool busy_ GUARDED_BY(mu_) = false;
};

}  // namespace bascule
