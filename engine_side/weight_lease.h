// The right of one decode step to read one version: while a lease lives, the memory it shows is not written (I1) and
// stays one version (I2). Short-lived: a session that needs the slot waits for its leases.
//
// Thread-safety: confined to the thread that took it, but for Tensor, which any thread may call while that one keeps
// the lease; movable.
#pragma once

#include <cstddef>
#include <span>

#include "bridge/manifest/manifest.h"

namespace bascule {

class SlotWork;
class WeightSlots;
struct HeldDigests;

class WeightLease {
 public:
  WeightLease() = default;  // empty
  WeightLease(WeightLease&& other) noexcept;
  WeightLease& operator=(WeightLease&& other) noexcept;
  ~WeightLease();

  bool empty() const { return slots_ == nullptr; }
  const WeightVersion& version() const;
  // Dense row-major bytes of local tensor `tensor` of `engine_rank`, in the order of the engine's layout; 64-byte
  // aligned. Where slots lie on a device: addresses for the device, and the lease is held until the device has done
  // what reads them.
  std::span<const std::byte> Tensor(int engine_rank, int tensor) const;
  // Which of the receiver's slots it shows. As long as slots have memory of their own, a slot's addresses never change:
  // what was made for them (a CUDA graph) serves whenever the slot is live.
  int slot() const;
  // What works on the memory that it shows, which may be that of devices.
  SlotWork& work() const;
  // The digests of what it shows, as they were proven. See engine_side/weight_slots.h.
  const HeldDigests& held() const;
  // By which another process maps all memory of a rank, read-only; -1 where it cannot. The lease's: duplicate it to
  // keep it.
  int shared_fd(int engine_rank) const;

 private:
  friend class WeightSlots;
  WeightLease(WeightSlots* slots, int slot) : slots_(slots), slot_(slot) {}
  WeightSlots* slots_ = nullptr;
  int slot_ = 0;
};

}  // namespace bascule
