// Stage: flip (verify -> [flip] -> decode)
//
// Memory for two or three versions of one replica: on every engine rank of this process one slot per version. The live
// slot serves decode and is never written; a session fills a shadow slot; a flip makes that the live one and keeps the
// old one as the way back. All slots are allocated and prefaulted once, but for memory that others have mapped or lent:
// that is never written again, and a slot that has it gets other memory when it is reserved. It may be memory of
// devices (SlotWork): its addresses are then for the device alone.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
#include "engine_side/slot_work.h"
#include "engine_side/weight_lease.h"

namespace bascule {

using DigestsByRank = std::vector<std::vector<TensorDigest>>;  // by engine rank and tensor

// What every engine rank holds of a version.
struct HeldDigests {
  DigestsByRank received;            // of logical tensors, replicas included
  DigestsByRank derived;             // of derived tensors
  std::vector<TensorDigest> totals;  // of logical tensors, as the seal has them, in layout order
};

// Where slots have their memory, and since when.
struct SlotMemory {
  DeviceMemory* from = nullptr;  // borrowed; null: where the SlotWork has it, HostMemory() at first
  bool when_reserved = false;    // a slot gets its memory when it is reserved for the first time
};

class WeightSlots {
 public:
  // `slot_count` is 2 or 3. Tensors are stored dense, whatever strides the layout gives. `work` is borrowed.
  //
  // ResourceExhausted "slot_memory"  with the bytes that were asked for
  static Result<std::unique_ptr<WeightSlots>> Create(const Layout& engine_layout, int slot_count, Clock& clock,
                                                     SlotMemory memory = {}, SlotWork& work = HostSlotWork());
  // No lease is left. Memory on which work is under way stays until the process ends.
  ~WeightSlots();

  // Never waits for a sync, but for a flip in place that is under way. Empty while nothing is live.
  [[nodiscard]] WeightLease AcquireLive() EXCLUDES(mu_);

  // Reserves a shadow slot for staging: a free one, else the kept version's, which is given up. Waits for the slot's
  // leases, for a rollback in place, and for work that an earlier session has left under way (SlotWork::Settle, and its
  // errors); until they are gone the kept version stays.
  //
  // DeadlineExceeded   "shadow_leased"   a reader still holds the slot
  // FailedPrecondition "shadow_reserved" a session holds one already
  // Cancelled          "cancelled"       `stop` ended the wait
  // ResourceExhausted  "slot_memory"     the slot needs other memory, and there is none: nothing is reserved
  Result<int> ReserveShadow(Deadline deadline, std::stop_token stop = {}) EXCLUDES(mu_);
  // As ReserveShadow, of a slot that shows `lent` memory: per engine rank a version as a slot holds it, RankBytes long.
  // Nothing may be written there. Tensors of the slot that lie behind it get memory of the slot's own. Only where slots
  // lie in host memory.
  Result<int> ReserveLent(std::vector<std::unique_ptr<DeviceBuffer>> lent, Deadline deadline, std::stop_token stop = {})
      EXCLUDES(mu_);
  // Freezes the memory of the reserved slot; see DeviceBuffer::Freeze.
  Status FreezeShadow(int slot);
  // Memory of a local tensor of the reserved slot, for staging; all memory of a rank, with what lies between its
  // tensors: of a slot that has memory of its own.
  std::span<std::byte> ShadowTensor(int slot, int engine_rank, int tensor);
  std::span<std::byte> RankMemory(int slot, int engine_rank);
  // Gives a reserved slot back unflipped.
  void ReleaseShadow(int slot) EXCLUDES(mu_);
  // The reserved slot becomes live as `version`; the old live slot becomes the kept one. One exchange of two numbers.
  // `held` need only be given for later flips in place and for HeldOf.
  void Flip(int slot, WeightVersion version, HeldDigests held = {}) EXCLUDES(mu_);

  // For flips in place: as Flip, but the slots keep their roles and `exchange` moves the bytes, so that addresses of
  // live weights never change. `held` is what the reserved slot holds; `exchange` gets what live and staged memory hold
  // and leaves both as they were when it fails, unless with "live_lost": then nothing is live or kept any more. It runs
  // without the lock; AcquireLive waits for it.
  //
  // FailedPrecondition "live_leased"  the live slot has a reader; what `exchange` returns
  using ExchangeBytes = std::function<Status(const HeldDigests& live, const HeldDigests& staged)>;
  Status FlipInPlace(int slot, const WeightVersion& version, HeldDigests held, const ExchangeBytes& exchange)
      EXCLUDES(mu_);
  // As SwapKept, in place.
  Result<WeightVersion> SwapKeptInPlace(const ExchangeBytes& exchange) EXCLUDES(mu_);
  // After "live_leased": waits for a moment at which the live slot may have no reader.
  //
  // FailedPrecondition "live_leased"
  Status AwaitUnleasedLive(Deadline deadline) EXCLUDES(mu_);

  // The kept version becomes live, the live one is kept: the way back, no transfer.
  //
  // FailedPrecondition "no_kept_version"
  Result<WeightVersion> SwapKept() EXCLUDES(mu_);
  // Nothing is kept any more: its slot is free.
  void ForgetKept() EXCLUDES(mu_);

  // What the slot of a lease, which is not empty, held when it was flipped to.
  const HeldDigests& HeldOf(const WeightLease& lease) const;
  // The memory of one rank's tensors in a rank's slot, from the first to behind the last.
  static std::int64_t RankBytes(const RankLayout& rank);
  // Where in it each tensor begins, and behind them all where it ends.
  static std::vector<std::int64_t> TensorOffsets(const RankLayout& rank);

  std::optional<WeightVersion> live() const EXCLUDES(mu_);
  std::optional<WeightVersion> kept() const EXCLUDES(mu_);
  std::int64_t slot_bytes(int engine_rank) const;
  int slot_count() const;
  const Layout& layout() const;
  SlotWork& work() const { return work_; }  // with the memory of slots

 private:
  friend class WeightLease;
  struct Slot;
  WeightSlots(const Layout& engine_layout, Clock& clock, SlotMemory memory, SlotWork& work);
  Result<int> ReserveRole(Deadline deadline, std::stop_token stop) EXCLUDES(mu_);
  Status GiveMemory(int slot, std::vector<std::unique_ptr<DeviceBuffer>> lent) const;
  Slot& at(int slot) const { return *slots_[static_cast<std::size_t>(slot)]; }
  std::optional<int> FreeSlot() const REQUIRES(mu_);
  void ReleaseLease(int slot) EXCLUDES(mu_);
  Status BeginExchange() REQUIRES(mu_);
  Status EndExchange(int slot, const Status& exchanged) EXCLUDES(mu_);

  const Layout layout_;
  Clock& clock_;
  const SlotMemory memory_;
  SlotWork& work_;
  mutable Mutex mu_;  // Guards roles and counts; never held across a copy or a wait but for leases to end.
  CondVar leases_changed_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::optional<int> live_ GUARDED_BY(mu_);
  std::optional<int> kept_ GUARDED_BY(mu_);
  std::optional<int> reserved_ GUARDED_BY(mu_);
  bool exchanging_ GUARDED_BY(mu_) = false;  // by a flip in place: nobody may read or change slots
};

}  // namespace bascule
