// Stage: flip (verify -> [flip] -> decode)
//
// The flip that keeps every address of the live weights: their bytes change places with those of the other slot, and
// what then lies in live memory is digested before it may be read. The other slot holds the old version afterwards, so
// the way back is the same exchange. Tensors that have the same digests in both versions are left alone: what a partial
// version carries over costs no stall. A copy that fails, or a digest that differs, is undone; what was exchanged is
// then digested again, and live memory serves the old version only if it holds it (I10).
//
// Thread-safety: confined to one thread at a time.
#pragma once

#include <memory>
#include <vector>

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
  // errors of SlotWork      nothing was begun
  Status Exchange(const HeldDigests& live, const HeldDigests& staged);
  // What part of the memory that exchanges, and how long all of it takes on this machine: from a sample, measured when
  // this was made.
  double ShareOf(const HeldDigests& live, const HeldDigests& staged) const;
  Duration EstimatedTime() const { return estimated_; }

 private:
  // Per engine rank and slot tensor.
  using Changed = std::vector<std::vector<bool>>;

  InPlaceFlip(WeightSlots& slots, const ReceivePlan& engine_plan, const DerivedTensors& derived, BlockCopier* copier,
              Duration estimated)
      : slots_(slots), engine_plan_(engine_plan), derived_(derived), copier_(copier), estimated_(estimated) {}
  Changed ChangedBetween(const HeldDigests& live, const HeldDigests& staged) const;
  std::vector<std::vector<BlockExchange::Pair>> MemoryOf(const Changed& changed) const;
  // Of what may have been written, with all derived tensors and padding.
  Status Proof(const HeldDigests& held, const Changed& changed) const;
  Status CheckReceived(const TensorMemory& live, const HeldDigests& held, const Changed& changed) const;
  template <typename Visit>
  void ForEachSlice(const Visit& visit) const;

  WeightSlots& slots_;
  const ReceivePlan& engine_plan_;
  const DerivedTensors& derived_;
  BlockCopier* const copier_;  // null: as the slots' memory wants it
  const Duration estimated_;
};

}  // namespace bascule
