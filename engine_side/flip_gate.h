// Stage: flip (verify -> [flip] -> decode)
//
// The one place where the live version changes: at a safe point the slots exchange roles (or, in place, their bytes)
// and the engine's caches are told, in one critical section, so that label and bytes never disagree (I9) and no step
// sees half of it (I5). One flip or rollback at a time.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "engine_side/engine_hooks.h"
#include "engine_side/in_place_flip.h"
#include "engine_side/stall_budget.h"
#include "engine_side/weight_slots.h"

namespace bascule {

// A verified version in a reserved slot.
struct StagedVersion {
  int slot = 0;
  WeightVersion version;
  HeldDigests held;
  // Asked at the safe point, since a rollback may have come in between: may it go live where this is live? Any may
  // where it is empty.
  std::function<Status()> check = {};
};

class FlipGate {
 public:
  // Puts on record what has gone live. No other version goes live before it returns, so records are in the order of
  // what they tell.
  using Record = std::function<void(const FlipReport&)>;

  // `slots`, `hooks`, `clock` and `in_place` are borrowed; without `in_place` slots exchange roles.
  FlipGate(WeightSlots& slots, EngineHooks& hooks, Clock& clock, InPlaceFlip* in_place = nullptr,
           StallBudget budget = {})
      : slots_(slots), hooks_(hooks), clock_(clock), in_place_(in_place), budget_(budget) {}

  // Makes `staged` live; after an error its slot is reserved still. Waits for a rollback under way.
  //
  // as staged.check
  // DeadlineExceeded "deadline"     no safe point in time; Cancelled "engine_stopping"
  // FailedPrecondition "stall_over_budget"  it would stall decoding for longer than allowed, and is refused for that,
  // or
  //                                         was postponed until the deadline. A rollback is never held back.
  // in place also:
  // FailedPrecondition "live_leased"  somebody reads the live weights until the deadline
  // Aborted "flip_undone"; DataLoss "live_lost"  see InPlaceFlip
  Result<FlipReport> Flip(const StagedVersion& staged, std::uint64_t at_step, Deadline deadline, const Record& record)
      EXCLUDES(mu_);

  // See WeightReceiver::Rollback. Waits for a flip that is being recorded.
  Result<FlipReport> Rollback(std::optional<std::uint64_t> to, bool refused, Deadline deadline, const Record& record)
      EXCLUDES(mu_);

 private:
  struct Stall {
    TimePoint at;
    Duration time{};
    double share = 1;  // of the memory that was exchanged; between slots that exchange roles: all
  };
  void RecordAndLeave(const Result<FlipReport>& report, const Record& record) EXCLUDES(mu_);
  Result<FlipReport> SwapKept(std::optional<std::uint64_t> to, bool refused, Deadline deadline);
  // `change` makes another version live and says which; while that fails for `live_leased` or for the budget's sake it
  // is tried again.
  Result<FlipReport> AtSafePoint(std::uint64_t at_step, Deadline deadline,
                                 const std::function<Result<WeightVersion>()>& change);
  Status TryAgainLater(const Status& failed, Deadline deadline);
  Status CheckBudget(double share);
  std::optional<Duration> ExpectedStall(double share);
  void NoteStall(Duration stall);
  Status ExchangeInPlace(const HeldDigests& live, const HeldDigests& next);
  Result<WeightVersion> MakeLive(const StagedVersion& staged);
  Result<WeightVersion> MakeKeptLive(bool refused);

  WeightSlots& slots_;
  EngineHooks& hooks_;
  Clock& clock_;
  InPlaceFlip* const in_place_;
  const StallBudget budget_;
  // Of the one that is not refused by `busy_`:
  std::deque<Stall> recent_stalls_;  // while decoding
  double share_ = 1;                 // of the exchange under way
  Mutex mu_;                         // not held at the safe point
  CondVar left_;
  bool busy_ GUARDED_BY(mu_) = false;
  bool recording_ GUARDED_BY(mu_) = false;  // what has gone live; busy, too
};

}  // namespace bascule
