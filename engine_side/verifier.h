// Stage: verify (staging -> [verify] -> flip)
//
// Proves that engine memory holds, where the map says, what the senders held where their map says: each slice alone by
// its digest as it lies in memory, then the tensors' totals against the seal, replicas against each other, padding
// against zero. Reads memory only; the bytes of a frame are never what is digested.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/manifest/manifest.h"
#include "engine_side/receive_plan.h"
#include "engine_side/staging.h"

namespace bascule {

// The seal's digests are those of the version that it names.
//
// DataLoss "digest_mismatch"
Status CheckVersionDigest(const ManifestOffer& offer, const ManifestSeal& seal);

// Errors: also those of SlotWork.
//
// Thread-safety: Note of different buckets, and NoteCarried, may run at once; the checks want every bucket and every
// carried part noted.
class Verifier {
 public:
  // All but `memory` are borrowed; `work` is at home in that memory.
  Verifier(const ReceivePlan& plan, const Layout& engine_layout, TensorMemory memory, SlotWork& work = HostSlotWork());

  // The digests of every slice of a bucket as it lies in memory, in order.
  void Note(std::uint32_t bucket, std::vector<TensorDigest> slices) { noted_[bucket] = std::move(slices); }
  // Likewise of a part that is carried over, by its number in the plan.
  void NoteCarried(std::size_t part, std::vector<TensorDigest> slices) { carried_[part] = std::move(slices); }
  // Notes all buckets, as they lie in memory now.
  Status NoteEveryBucket();

  // Per plan tensor: the sum over slices that count.
  std::vector<TensorDigest> Totals() const;
  // Per engine rank, the same over everything that it holds, replicas included.
  std::vector<std::vector<TensorDigest>> HeldByRank() const;
  // The whole proof. `offer` lists the plan's tensors by name; `seal` has one digest for each.
  //
  // DataLoss "digest_mismatch"  names tensor and engine ranks; or padding that is not zero; or the version digest
  // DataLoss "replicas_differ"  names tensor, box and rank
  Status Check(const ManifestOffer& offer, const ManifestSeal& seal) const;
  // DataLoss "replicas_differ"
  Status CheckReplicas() const;
  // Every holder that differs from the owner of its elements.
  struct Difference {
    std::int32_t tensor = 0;  // of the plan
    std::string what;         // box and rank
  };
  Result<std::vector<Difference>> ReplicaDifferences() const;

 private:
  struct PlacedSlice {
    const Slice* slice = nullptr;
    int engine_rank = 0;
    TensorDigest digest;
  };
  using Owners = std::map<Box, PlacedSlice>;  // slices of one tensor that count

  void ForEachSlice(const std::function<void(const PlacedSlice&)>& visit) const;
  Result<TensorDigest> DigestAtOwners(const Owners& owners, const Box& box) const;
  Result<TensorDigest> DigestBox(const Slice& slice, int engine_rank, const Box& logical_box) const;
  Status CheckTotals(const ManifestOffer& offer, const ManifestSeal& seal) const;
  std::string RanksOf(std::int32_t tensor) const;

  const ReceivePlan& plan_;
  const Layout& engine_layout_;
  const TensorMemory memory_;
  SlotWork& work_;
  std::vector<std::vector<TensorDigest>> noted_;    // per bucket, per slice
  std::vector<std::vector<TensorDigest>> carried_;  // per carried part, per slice
};

// No fill box has another byte than zero.
//
// DataLoss "digest_mismatch"  names box, tensor and rank; errors of SlotWork
Status CheckPaddingIsZero(const TensorMemory& memory, const Layout& engine_layout, SlotWork& work);

}  // namespace bascule
