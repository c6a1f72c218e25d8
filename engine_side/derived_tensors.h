// Stage: verify (staging -> [verify] -> flip)
//
// Tensors that an engine makes of those it receives: absorbed projections, repacked scales, a copy in another order.
// No sender knows them, and no plan covers them. They lie in every slot behind the received tensors of their rank, are
// made once for each version, by EngineHooks::Finalize, when all bytes it reads are proven and before the version can
// flip, and have digests of their own: nobody can send those, but a flip in place and a scrub of live memory compare
// with them.
//
// Thread-safety: thread-safe (read-only once made).
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bridge/layout/layout.h"
#include "engine_side/engine_hooks.h"
#include "engine_side/staging.h"
#include "engine_side/weight_slots.h"

namespace bascule {

class DerivedTensors {
 public:
  // `tensors` are those of each engine rank; none at all: the engine derives nothing. `engine_layout` passes
  // CheckLayout.
  //
  // InvalidArgument "bad_layout"  for another number of ranks; as CheckLayout, of all tensors of a rank together
  static Result<DerivedTensors> Create(const Layout& engine_layout,
                                       const std::vector<std::vector<LocalTensor>>& tensors);

  // The engine's layout with the derived tensors behind each rank's own: what a slot has memory for. No row is about
  // them.
  const Layout& slot_layout() const { return slot_layout_; }

  // Zeroes the derived tensors of the reserved `slot`, has `hooks` make them, and digests what they made.
  //
  // Aborted "finalize_failed"  with what Finalize said; errors of SlotWork
  Result<DigestsByRank> Make(EngineHooks& hooks, const WeightVersion& version, WeightSlots& slots, int slot,
                             Deadline deadline) const;
  // `memory` holds what has these digests.
  //
  // DataLoss "digest_mismatch"  names tensor and engine rank; errors of SlotWork
  Status Check(const TensorMemory& memory, const DigestsByRank& digests, SlotWork& work) const;

 private:
  DerivedTensors(Layout slot_layout, std::vector<std::size_t> first)
      : slot_layout_(std::move(slot_layout)), first_(std::move(first)) {}
  // Of every derived tensor, as if it were whole and alone.
  template <typename Visit>
  void ForEach(const Visit& visit) const;
  Result<DigestsByRank> Digest(const TensorMemory& memory, SlotWork& work) const;

  Layout slot_layout_;
  std::vector<std::size_t> first_;  // per rank: index of its first derived tensor
};

}  // namespace bascule
