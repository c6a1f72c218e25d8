#include "engine_side/verifier.h"

#include <fmt/format.h>

#include <set>

#include "kernels/digest.h"

namespace bascule {
namespace {

Status CheckCount(const ManifestOffer& offer, const ManifestSeal& seal) {
  if (seal.digests.size() == offer.tensors.size()) return OkStatus();
  return Status::DataLoss("digest_mismatch",
                          fmt::format("seal has {} digests for {} tensors", seal.digests.size(), offer.tensors.size()));
}

}  // namespace

Status CheckVersionDigest(const ManifestOffer& offer, const ManifestSeal& seal) {
  RETURN_IF_ERROR(CheckCount(offer, seal));
  const Hash256 version_digest = VersionDigestOf(offer.tensors, seal.digests);
  if (version_digest == seal.version_digest) return OkStatus();
  return Status::DataLoss("digest_mismatch", fmt::format("version digest: tensors give {} seal={}",
                                                         version_digest.ToHex(), seal.version_digest.ToHex()));
}

Verifier::Verifier(const ReceivePlan& plan, const Layout& engine_layout, TensorMemory memory, SlotWork& work)
    : plan_(plan),
      engine_layout_(engine_layout),
      memory_(std::move(memory)),
      work_(work),
      noted_(plan.plan.buckets.size()),
      carried_(plan.carried.size()) {}

Status Verifier::NoteEveryBucket() {
  std::vector<SlotSource> boxes;
  for (const Bucket& bucket : plan_.plan.buckets) {
    const int engine_rank = plan_.engine_rank(bucket);
    for (const Slice& slice : bucket.slices) {
      boxes.push_back({BoxOfSlice(plan_, engine_layout_, slice, engine_rank, slice.logical_box),
                       memory_(engine_rank, slice.engine_tensor).data()});
    }
  }
  ASSIGN_OR_RETURN(const std::vector<TensorDigest> digests, work_.Digest(boxes));
  auto next = digests.begin();
  for (std::size_t b = 0; b < noted_.size(); ++b) {
    const auto end = next + std::ssize(plan_.plan.buckets[b].slices);
    noted_[b].assign(next, end);
    next = end;
  }
  return OkStatus();
}

// `logical_box` is a part of the slice's. It is digested before `memory_` is asked again.
Result<TensorDigest> Verifier::DigestBox(const Slice& slice, int engine_rank, const Box& logical_box) const {
  const SlotSource box{BoxOfSlice(plan_, engine_layout_, slice, engine_rank, logical_box),
                       memory_(engine_rank, slice.engine_tensor).data()};
  ASSIGN_OR_RETURN(const std::vector<TensorDigest> digest, work_.Digest(std::span(&box, 1)));
  return digest[0];
}

std::vector<TensorDigest> Verifier::Totals() const {
  std::vector<TensorDigest> totals(plan_.plan.tensors.size());
  ForEachSlice([&](const PlacedSlice& placed) {
    if (placed.slice->counts) totals[static_cast<std::size_t>(placed.slice->tensor)] += placed.digest;
  });
  return totals;
}

std::vector<std::vector<TensorDigest>> Verifier::HeldByRank() const {
  std::vector<std::vector<TensorDigest>> held(engine_layout_.ranks.size(),
                                              std::vector<TensorDigest>(plan_.plan.tensors.size()));
  ForEachSlice([&](const PlacedSlice& placed) {
    held[static_cast<std::size_t>(placed.engine_rank)][static_cast<std::size_t>(placed.slice->tensor)] += placed.digest;
  });
  return held;
}

Status Verifier::Check(const ManifestOffer& offer, const ManifestSeal& seal) const {
  RETURN_IF_ERROR(CheckTotals(offer, seal));
  RETURN_IF_ERROR(CheckVersionDigest(offer, seal));
  RETURN_IF_ERROR(CheckReplicas());
  return CheckPaddingIsZero(memory_, engine_layout_, work_);
}

Status Verifier::CheckTotals(const ManifestOffer& offer, const ManifestSeal& seal) const {
  RETURN_IF_ERROR(CheckCount(offer, seal));
  const std::vector<TensorDigest> totals = Totals();
  for (std::size_t i = 0; i < offer.tensors.size(); ++i) {
    const std::size_t tensor = plan_.manifest_order[i];
    if (totals[tensor] == seal.digests[i]) continue;
    return Status::DataLoss(
        "digest_mismatch",
        fmt::format("tensor {} on engine ranks {}: memory={} seal={}", offer.tensors[i].name,
                    RanksOf(static_cast<std::int32_t>(tensor)), totals[tensor].ToHex(), seal.digests[i].ToHex()));
  }
  return OkStatus();
}

Status Verifier::CheckReplicas() const {
  ASSIGN_OR_RETURN(const std::vector<Difference> differences, ReplicaDifferences());
  if (differences.empty()) return OkStatus();
  const auto tensor = static_cast<std::size_t>(differences.front().tensor);
  return Status::DataLoss("replicas_differ",
                          fmt::format("tensor {} {}", plan_.plan.tensors[tensor].name, differences.front().what));
}

// A replica may have come from another sender than the slices that count, and may be cut elsewhere.
Result<std::vector<Verifier::Difference>> Verifier::ReplicaDifferences() const {
  std::set<std::int32_t> replicated;
  ForEachSlice([&](const PlacedSlice& placed) {
    if (!placed.slice->counts) replicated.insert(placed.slice->tensor);
  });
  std::map<std::int32_t, Owners> owners;
  std::vector<PlacedSlice> replicas;
  ForEachSlice([&](const PlacedSlice& placed) {
    if (!replicated.contains(placed.slice->tensor)) return;
    if (placed.slice->counts) {
      owners[placed.slice->tensor].emplace(placed.slice->logical_box, placed);
    } else {
      replicas.push_back(placed);
    }
  });
  std::vector<Difference> differences;
  for (const PlacedSlice& replica : replicas) {
    const std::int32_t tensor = replica.slice->tensor;
    const Box& box = replica.slice->logical_box;
    ASSIGN_OR_RETURN(const TensorDigest owned, DigestAtOwners(owners[tensor], box));
    if (owned == replica.digest) continue;
    differences.push_back({tensor, fmt::format("box {}: engine rank {} holds other bytes than ranks {}", box.ToString(),
                                               replica.engine_rank, RanksOf(tensor))});
  }
  return differences;
}

// Where no slice that counts has this very box, the parts are digested where they lie.
Result<TensorDigest> Verifier::DigestAtOwners(const Owners& owners, const Box& box) const {
  if (const auto same = owners.find(box); same != owners.end()) return same->second.digest;
  TensorDigest digest;
  for (const auto& [owner_box, owner] : owners) {
    const std::optional<Box> part = Intersect(owner_box, box);
    if (!part) continue;
    ASSIGN_OR_RETURN(const TensorDigest of_part, DigestBox(*owner.slice, owner.engine_rank, *part));
    digest += of_part;
  }
  return digest;
}

void Verifier::ForEachSlice(const std::function<void(const PlacedSlice&)>& visit) const {
  for (std::size_t b = 0; b < noted_.size(); ++b) {
    const Bucket& bucket = plan_.plan.buckets[b];
    for (std::size_t s = 0; s < bucket.slices.size(); ++s) {
      visit({&bucket.slices[s], plan_.engine_rank(bucket), noted_[b][s]});
    }
  }
  for (std::size_t p = 0; p < carried_.size(); ++p) {
    const CarriedPart& part = plan_.carried[p];
    for (std::size_t s = 0; s < part.slices.size(); ++s) visit({&part.slices[s], part.engine_rank, carried_[p][s]});
  }
}

// The digest of zeros is zero under any key, and of nothing else that differs in one word.
Status CheckPaddingIsZero(const TensorMemory& memory, const Layout& engine_layout, SlotWork& work) {
  std::vector<SlotSource> boxes;
  std::vector<std::string> names;
  for (std::size_t r = 0; r < engine_layout.ranks.size(); ++r) {
    const RankLayout& rank = engine_layout.ranks[r];
    for (const MapRow& row : rank.rows) {
      if (row.logical != kFill) continue;
      const LocalTensor& local = rank.tensors[static_cast<std::size_t>(row.local)];
      boxes.push_back({BoxOfPadding(row, local, static_cast<int>(r)), memory(static_cast<int>(r), row.local).data()});
      names.push_back(fmt::format("{} of engine tensor {} on engine rank {}", row.local_box.ToString(), local.name, r));
    }
  }
  ASSIGN_OR_RETURN(const std::vector<TensorDigest> digests, work.Digest(boxes));
  for (std::size_t i = 0; i < digests.size(); ++i) {
    if (digests[i] == TensorDigest{}) continue;
    return Status::DataLoss("digest_mismatch", fmt::format("padding {} is not zero", names[i]));
  }
  return OkStatus();
}

std::string Verifier::RanksOf(std::int32_t tensor) const {
  std::set<int> ranks;
  ForEachSlice([&](const PlacedSlice& placed) {
    if (placed.slice->tensor == tensor && placed.slice->counts) ranks.insert(placed.engine_rank);
  });
  return fmt::format("{}", fmt::join(ranks, ","));
}

}  // namespace bascule
