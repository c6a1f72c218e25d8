// Stage: flip (verify -> [flip] -> decode)
//
// The flip that keeps every address of the live weights: their bytes change places with those of the other slot, and
// what then lies in live memory is digested before it may be read. The other slot holds the old version afterwards, so
// the way back is the same exchange. A copy that fails, or a digest that differs, is undone; live memory is then
// digested again, and serves the old version only if it holds it (I10).
//
// Thread-safety: confined to one thread at a time.
#pragma once

#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "engine_side/block_exchange.h"
#include "engine_side/derived_tensors.h"
#include "engine_side/live_digest.h"
#include "engine_side/receive_plan.h"
#include "engine_side/weight_slots.h"

namespace bascule {

class InPlaceFlip {
 public:
  // Borrows all. `slots` are two, `engine_plan` is PlanOfEngine's of the engine's layout, `derived` has that of the
  // slots. Blocks are exchanged by `copier`, or where that is null as the slots' memory wants it. Nothing is staged or
  // live yet.
  //
  // Errors of SlotWork
  static Result<std::unique_ptr<InPlaceFlip>> Create(WeightSlots& slots, const ReceivePlan& engine_plan,
                                                     const DerivedTensors& derived, BlockCopier* copier, Clock& clock);

  // Live memory holds `live` and the other slot `staged`: exchanges them. Nobody reads either.
  //
  // Aborted  "flip_undone"  why, and that live memory holds `live` still
  // DataLoss "live_lost"    it does not: it cannot serve until a version is loaded anew
  Status Exchange(const HeldDigests& live, const HeldDigests& staged);
  // How long that takes on this machine: from a sample of the memory, measured when this was made.
  Duration EstimatedTime() const { return estimated_; }

 private:
  InPlaceFlip(WeightSlots& slots, const ReceivePlan& engine_plan, const DerivedTensors& derived, BlockExchange exchange,
              Duration estimated)
      : slots_(slots),
        engine_plan_(engine_plan),
        derived_(derived),
        exchange_(std::move(exchange)),
        estimated_(estimated) {}
  Status Proof(const HeldDigests& held) const;

  WeightSlots& slots_;
  const ReceivePlan& engine_plan_;
  const DerivedTensors& derived_;
  BlockExchange exchange_;
  const Duration estimated_;
};

}  // namespace bascule
