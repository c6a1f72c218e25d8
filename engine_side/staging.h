// Stage: staging (transport -> [staging] -> verify)
//
// Where a session's bytes land: the shadow slot. Staging knows places, the coverage ledger knows which buckets have
// arrived; together they prove that every planned byte is there, once (I4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "bridge/bucket/box_view.h"
#include "engine_side/receive_plan.h"
#include "engine_side/slot_work.h"
#include "engine_side/weight_slots.h"
#include "kernels/digest.h"

namespace bascule {

// Memory of local tensor `tensor` of `engine_rank`: of a slot that is staged, or of a lease.
using TensorMemory = std::function<std::span<const std::byte>(int engine_rank, int tensor)>;

// `logical_box`, which is a part of the slice's, as it lies on `engine_rank`.
SlotBox BoxOfSlice(const ReceivePlan& plan, const Layout& engine_layout, const Slice& slice, int engine_rank,
                   const Box& logical_box);
// What a fill row covers of `local`. Its digest, under a key of its own, is zero where all of it is.
SlotBox BoxOfPadding(const MapRow& row, const LocalTensor& local, int engine_rank);

// Thread-safety: thread-safe for slices that do not overlap, as those of a plan do not.
class Staging {
 public:
  // `plan` is borrowed; `slot` is reserved and stays so.
  Staging(const ReceivePlan& plan, WeightSlots& slots, int slot) : plan_(plan), slots_(slots), slot_(slot) {}

  // Zeroes every element that no logical tensor covers. Errors of SlotWork.
  Status FillPadding() const;
  // Copies what lies at `from`, a view for each slice of `bucket`, to its place and returns the digests of what was
  // written there, whatever happens to the sources meanwhile. Errors of SlotWork.
  Result<std::vector<TensorDigest>> PlaceAndDigest(const Bucket& bucket, std::span<const BoxView> from,
                                                   FrameMemory memory) const;
  // The same with what lies in the same places of `live`.
  Result<std::vector<TensorDigest>> CarryAndDigest(const CarriedPart& part, const WeightLease& live) const;
  TensorMemory memory() const;

 private:
  Result<std::vector<TensorDigest>> Place(int engine_rank, std::span<const Slice> slices, std::span<const BoxView> from,
                                          FrameMemory memory) const;

  const ReceivePlan& plan_;
  WeightSlots& slots_;
  const int slot_;
};

// Which buckets of a plan have arrived. Thread-safety: thread-compatible.
class CoverageLedger {
 public:
  explicit CoverageLedger(std::size_t bucket_count) : arrived_(bucket_count), damages_(bucket_count) {}

  bool HasArrived(std::uint32_t bucket) const { return arrived_[bucket]; }
  void Arrived(std::uint32_t bucket) {
    arrived_[bucket] = true;
    ++arrived_count_;
  }
  // How often the bucket has come damaged, this time included.
  int Damaged(std::uint32_t bucket) { return ++damages_[bucket]; }

  std::size_t bucket_count() const { return arrived_.size(); }
  std::size_t arrived_count() const { return arrived_count_; }
  bool complete() const { return arrived_count_ == arrived_.size(); }
  std::vector<std::uint32_t> Missing() const;

 private:
  std::vector<bool> arrived_;
  std::vector<std::uint8_t> damages_;
  std::size_t arrived_count_ = 0;
};

}  // namespace bascule
