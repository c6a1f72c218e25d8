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

Verifier::Verifier(const ReceivePlan& plan, const Layout& engine_layout, TensorMemory memory)
    : plan_(plan), engine_layout_(engine_layout), memory_(std::move(memory)), noted_(plan.plan.buckets.size()) {}

TensorDigest Verifier::Digest(const Slice& slice, int engine_rank) const {
  return DigestBox(slice, engine_rank, slice.logical_box);
}

// `logical_box` is a part of the slice's.
TensorDigest Verifier::DigestBox(const Slice& slice, int engine_rank, const Box& logical_box) const {
  const std::size_t tensor = static_cast<std::size_t>(slice.tensor);
  const TensorSpec& spec = plan_.plan.tensors[tensor];
  const RankLayout& rank = engine_layout_.ranks[static_cast<std::size_t>(engine_rank)];
  const LocalTensor& local = rank.tensors[static_cast<std::size_t>(slice.engine_tensor)];
  const Box engine_box = CorrespondingBox(logical_box, slice.logical_box, slice.engine_box);
  return DigestBoxOnHost(plan_.keys[tensor], ShapeOf(engine_box), ItemBytes(local.dtype),
                         memory_(engine_rank, slice.engine_tensor).data(), PlaceIn(engine_box, local.shape),
                         PlaceIn(logical_box, spec.shape));
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
  return CheckPaddingIsZero(memory_, engine_layout_);
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
  const std::vector<Difference> differences = ReplicaDifferences();
  if (differences.empty()) return OkStatus();
  const auto tensor = static_cast<std::size_t>(differences.front().tensor);
  return Status::DataLoss("replicas_differ",
                          fmt::format("tensor {} {}", plan_.plan.tensors[tensor].name, differences.front().what));
}

// A replica may have come from another sender than the slices that count, and may be cut elsewhere.
std::vector<Verifier::Difference> Verifier::ReplicaDifferences() const {
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
    if (DigestAtOwners(owners[tensor], box) == replica.digest) continue;
    differences.push_back({tensor, fmt::format("box {}: engine rank {} holds other bytes than ranks {}", box.ToString(),
                                               replica.engine_rank, RanksOf(tensor))});
  }
  return differences;
}

// Where no slice that counts has this very box, the parts are digested where they lie.
TensorDigest Verifier::DigestAtOwners(const Owners& owners, const Box& box) const {
  if (const auto same = owners.find(box); same != owners.end()) return same->second.digest;
  TensorDigest digest;
  for (const auto& [owner_box, owner] : owners) {
    const std::optional<Box> part = Intersect(owner_box, box);
    if (part) digest += DigestBox(*owner.slice, owner.engine_rank, *part);
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
}

// The digest of zeros is zero under any key, and of nothing else that differs in one word.
Status CheckPaddingIsZero(const TensorMemory& memory, const Layout& engine_layout) {
  for (std::size_t r = 0; r < engine_layout.ranks.size(); ++r) {
    const RankLayout& rank = engine_layout.ranks[r];
    for (const MapRow& row : rank.rows) {
      if (row.logical != kFill) continue;
      const LocalTensor& local = rank.tensors[static_cast<std::size_t>(row.local)];
      const BoxPlace place = PlaceIn(row.local_box, local.shape);
      const TensorDigest digest = DigestBoxOnHost(DigestKey{}, ShapeOf(row.local_box), ItemBytes(local.dtype),
                                                  memory(static_cast<int>(r), row.local).data(), place, place);
      if (digest == TensorDigest{}) continue;
      return Status::DataLoss("digest_mismatch",
                              fmt::format("padding {} of engine tensor {} on engine rank {} is not zero",
                                          row.local_box.ToString(), local.name, r));
    }
  }
  return OkStatus();
}

std::string Verifier::RanksOf(std::int32_t tensor) const {
  std::set<int> ranks;
  for (const Bucket& bucket : plan_.plan.buckets) {
    for (const Slice& slice : bucket.slices) {
      if (slice.tensor == tensor && slice.counts) ranks.insert(plan_.engine_rank(bucket));
    }
  }
  return fmt::format("{}", fmt::join(ranks, ","));
}

}  // namespace bascule
