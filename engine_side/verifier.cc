#include "engine_side/verifier.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "kernels/digest.h"

namespace bascule {
namespace {

struct PlacedSlice {
  const Slice* slice = nullptr;
  int engine_rank = 0;
  TensorDigest digest;
};

// Slices that count, of the tensors that have replicas, by tensor and box.
using Owners = std::map<std::int32_t, std::map<Box, PlacedSlice>>;

}  // namespace

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
  for (std::size_t b = 0; b < noted_.size(); ++b) {
    const std::vector<Slice>& slices = plan_.plan.buckets[b].slices;
    for (std::size_t s = 0; s < slices.size(); ++s) {
      if (slices[s].counts) totals[static_cast<std::size_t>(slices[s].tensor)] += noted_[b][s];
    }
  }
  return totals;
}

Status Verifier::Check(const ManifestOffer& offer, const ManifestSeal& seal) const {
  RETURN_IF_ERROR(CheckTotals(offer, seal));
  RETURN_IF_ERROR(CheckReplicas());
  return CheckPadding();
}

Status Verifier::CheckTotals(const ManifestOffer& offer, const ManifestSeal& seal) const {
  if (seal.digests.size() != offer.tensors.size()) {
    return Status::DataLoss("digest_mismatch", fmt::format("seal has {} digests for {} tensors", seal.digests.size(),
                                                           offer.tensors.size()));
  }
  const std::vector<TensorDigest> totals = Totals();
  for (std::size_t i = 0; i < offer.tensors.size(); ++i) {
    const std::size_t tensor = plan_.manifest_order[i];
    if (totals[tensor] == seal.digests[i]) continue;
    return Status::DataLoss(
        "digest_mismatch",
        fmt::format("tensor {} on engine ranks {}: memory={} seal={}", offer.tensors[i].name,
                    RanksOf(static_cast<std::int32_t>(tensor)), totals[tensor].ToHex(), seal.digests[i].ToHex()));
  }
  const Hash256 version_digest = VersionDigestOf(offer.tensors, seal.digests);
  if (version_digest == seal.version_digest) return OkStatus();
  return Status::DataLoss("digest_mismatch", fmt::format("version digest: tensors give {} seal={}",
                                                         version_digest.ToHex(), seal.version_digest.ToHex()));
}

// A replica may have come from another sender than the slices that count, and may be cut elsewhere: where no slice that
// counts has its very box, the parts are digested at their owners.
Status Verifier::CheckReplicas() const {
  std::vector<PlacedSlice> replicas;
  Owners owners;
  for (std::size_t b = 0; b < noted_.size(); ++b) {
    const Bucket& bucket = plan_.plan.buckets[b];
    for (std::size_t s = 0; s < bucket.slices.size(); ++s) {
      if (bucket.slices[s].counts) continue;
      replicas.push_back({&bucket.slices[s], plan_.engine_rank(bucket), noted_[b][s]});
      owners.try_emplace(bucket.slices[s].tensor);
    }
  }
  for (std::size_t b = 0; b < noted_.size() && !owners.empty(); ++b) {
    const Bucket& bucket = plan_.plan.buckets[b];
    for (std::size_t s = 0; s < bucket.slices.size(); ++s) {
      const auto found = owners.find(bucket.slices[s].tensor);
      if (!bucket.slices[s].counts || found == owners.end()) continue;
      found->second[bucket.slices[s].logical_box] = {&bucket.slices[s], plan_.engine_rank(bucket), noted_[b][s]};
    }
  }
  for (const PlacedSlice& replica : replicas) {
    const std::map<Box, PlacedSlice>& boxes = owners.at(replica.slice->tensor);
    TensorDigest at_owners;
    if (const auto same = boxes.find(replica.slice->logical_box); same != boxes.end()) {
      at_owners = same->second.digest;
    } else {
      for (const auto& [box, owner] : boxes) {
        const std::optional<Box> part = Intersect(box, replica.slice->logical_box);
        if (part) at_owners += DigestBox(*owner.slice, owner.engine_rank, *part);
      }
    }
    if (at_owners == replica.digest) continue;
    return Status::DataLoss(
        "replicas_differ",
        fmt::format("tensor {} box {}: engine rank {} holds other bytes than ranks {}",
                    plan_.plan.tensors[static_cast<std::size_t>(replica.slice->tensor)].name,
                    replica.slice->logical_box.ToString(), replica.engine_rank, RanksOf(replica.slice->tensor)));
  }
  return OkStatus();
}

// The digest of zeros is zero under any key, and of nothing else that differs in one word.
Status Verifier::CheckPadding() const {
  for (std::size_t r = 0; r < engine_layout_.ranks.size(); ++r) {
    const RankLayout& rank = engine_layout_.ranks[r];
    for (const MapRow& row : rank.rows) {
      if (row.logical != kFill) continue;
      const LocalTensor& local = rank.tensors[static_cast<std::size_t>(row.local)];
      const BoxPlace place = PlaceIn(row.local_box, local.shape);
      const TensorDigest digest = DigestBoxOnHost(DigestKey{}, ShapeOf(row.local_box), ItemBytes(local.dtype),
                                                  memory_(static_cast<int>(r), row.local).data(), place, place);
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
