// Stage: flip (verify -> [flip] -> decode)
//
// Memory for two or three versions of one replica: on every engine rank of this process one slot per version. The live
// slot serves decode and is never written; a session fills a shadow slot; a flip makes that the live one and keeps the
// old one as the way back. All slots are allocated and prefaulted once.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "bridge/layout/layout.h"
#include "device/buffer.h"
#include "engine_side/weight_lease.h"

namespace bascule {

class WeightSlots {
 public:
  // `slot_count` is 2 or 3. Tensors are stored dense, whatever strides the layout gives.
  //
  // ResourceExhausted "slot_memory"  with the bytes that were asked for
  static Result<std::unique_ptr<WeightSlots>> Create(const Layout& engine_layout, int slot_count, Clock& clock);
  ~WeightSlots();  // no lease is left

  // Never waits for a sync. Empty while nothing is live.
  [[nodiscard]] WeightLease AcquireLive() EXCLUDES(mu_);

  // Reserves a shadow slot for staging: a free one, else the kept version's, which is given up. Waits for the slot's
  // leases; until they are gone the kept version stays.
  //
  // DeadlineExceeded   "shadow_leased"   a reader still holds the slot
  // FailedPrecondition "shadow_reserved" a session holds one already
  // Cancelled          "cancelled"       `stop` ended the wait
  Result<int> ReserveShadow(Deadline deadline, std::stop_token stop = {}) EXCLUDES(mu_);
  // Memory of a local tensor of the reserved slot, for staging.
  std::span<std::byte> ShadowTensor(int slot, int engine_rank, int tensor);
  // Gives a reserved slot back unflipped.
  void ReleaseShadow(int slot) EXCLUDES(mu_);
  // The reserved slot becomes live as `version`; the old live slot becomes the kept one. One exchange of two numbers.
  void Flip(int slot, WeightVersion version) EXCLUDES(mu_);

  // The kept version becomes live, the live one is kept: the way back, no transfer.
  //
  // FailedPrecondition "no_kept_version"
  Result<WeightVersion> SwapKept() EXCLUDES(mu_);

  std::optional<WeightVersion> live() const EXCLUDES(mu_);
  std::optional<WeightVersion> kept() const EXCLUDES(mu_);
  std::int64_t slot_bytes(int engine_rank) const;
  int slot_count() const;
  const Layout& layout() const;

 private:
  friend class WeightLease;
  struct Slot;
  WeightSlots(const Layout& engine_layout, Clock& clock);
  Status Allocate();
  Slot& at(int slot) const { return *slots_[static_cast<std::size_t>(slot)]; }
  std::optional<int> FreeSlot() const REQUIRES(mu_);
  void ReleaseLease(int slot) EXCLUDES(mu_);

  const Layout layout_;
  Clock& clock_;
  mutable Mutex mu_;  // Guards roles and counts; never held across a copy or a wait but for leases to end.
  CondVar leases_changed_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::optional<int> live_ GUARDED_BY(mu_);
  std::optional<int> kept_ GUARDED_BY(mu_);
  std::optional<int> reserved_ GUARDED_BY(mu_);
};

}  // namespace bascule
