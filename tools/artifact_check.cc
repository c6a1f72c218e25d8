#include "tools/artifact_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <thread>

#include "base/worker.h"
#include "bridge/manifest/manifest.h"
#include "engine_side/live_digest.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

SourceBox BoxIn(const Artifact& artifact, int rank, int tensor, const Box& box) {
  const LocalTensor& local =
      artifact.layout().ranks[static_cast<std::size_t>(rank)].tensors[static_cast<std::size_t>(tensor)];
  return {.base = artifact.Base(rank, tensor),
          .item_bytes = ItemBytes(local.dtype),
          .shape = ShapeOf(box),
          .place = PlaceIn(box, local.shape)};
}

// Whole tensors, one at a time: for replicas that are cut elsewhere than their owners.
class TensorReader {
 public:
  explicit TensorReader(const Artifact& artifact) : artifact_(artifact) {}

  // Valid until the next call. Zeros where the file cannot be read, and `status` says why.
  std::span<const std::byte> Read(int rank, int tensor) {
    const LocalTensor& local =
        artifact_.layout().ranks[static_cast<std::size_t>(rank)].tensors[static_cast<std::size_t>(tensor)];
    bytes_.assign(static_cast<std::size_t>(local.Bytes()), std::byte{0});
    const SourceBox box = BoxIn(artifact_, rank, tensor, Box::Whole(local.shape));
    const auto view = artifact_.Read({box})->Next();
    if (view.ok()) {
      CopyBoxOnHost(box.shape, box.item_bytes, view->base, view->place, bytes_.data(), box.place);
    } else if (status_.ok()) {
      status_ = view.status();
    }
    return bytes_;
  }
  const Status& status() const { return status_; }

 private:
  const Artifact& artifact_;
  std::vector<std::byte> bytes_;
  Status status_;
};

// Share number `share` of `shares` of the plan's buckets.
Status NoteShare(const Artifact& artifact, const ReceivePlan& plan, std::size_t share, std::size_t shares,
                 Verifier& verifier) {
  // Runs of neighbouring buckets in turn, so that every share is read in long stretches.
  constexpr std::size_t kRunBuckets = 8;
  const std::vector<Bucket>& buckets = plan.plan.buckets;
  const auto is_mine = [&](std::size_t b) { return b / kRunBuckets % shares == share; };
  std::vector<SourceBox> boxes;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    if (!is_mine(b)) continue;
    for (const Slice& slice : buckets[b].slices) {
      boxes.push_back(BoxIn(artifact, plan.engine_rank(buckets[b]), slice.engine_tensor, slice.engine_box));
    }
  }
  const std::unique_ptr<BoxReader> reader = artifact.Read(boxes);
  auto box = boxes.begin();
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    if (!is_mine(b)) continue;
    std::vector<TensorDigest> digests;
    for (const Slice& slice : buckets[b].slices) {
      const auto tensor = static_cast<std::size_t>(slice.tensor);
      ASSIGN_OR_RETURN(const BoxView view, reader->Next());
      digests.push_back(DigestBoxOnHost(plan.keys[tensor], box->shape, box->item_bytes, view.base, view.place,
                                        PlaceIn(slice.logical_box, plan.plan.tensors[tensor].shape)));
      ++box;
    }
    verifier.Note(static_cast<std::uint32_t>(b), std::move(digests));
  }
  return OkStatus();
}

Result<MemoryDigest> DigestFiles(const Artifact& artifact, const ReceivePlan& plan) {
  TensorReader tensors(artifact);
  Verifier verifier(plan, artifact.layout(), [&](int rank, int tensor) { return tensors.Read(rank, tensor); });
  const std::size_t shares = std::max(1U, std::thread::hardware_concurrency());
  std::vector<Status> ends(shares);
  {
    std::vector<Worker> workers;
    for (std::size_t i = 0; i < shares; ++i) {
      workers.emplace_back(fmt::format("check-{}", i),
                           [&, i](std::stop_token) { ends[i] = NoteShare(artifact, plan, i, shares, verifier); });
    }
  }
  for (const Status& end : ends) RETURN_IF_ERROR(end);
  ASSIGN_OR_RETURN(std::vector<Verifier::Difference> differences, verifier.ReplicaDifferences());
  RETURN_IF_ERROR(tensors.status());
  return MemoryDigest{verifier.Totals(), verifier.HeldByRank(), std::move(differences)};
}

// The files that hold something else than their manifest says.
std::string AlteredFiles(const Artifact& artifact, const MemoryDigest& memory) {
  const ArtifactManifest& manifest = artifact.manifest();
  std::vector<std::string_view> files;
  for (std::size_t r = 0; r < manifest.ranks.size(); ++r) {
    const bool same = VersionDigestOf(manifest.layout.tensors, memory.held_by_rank[r]) == manifest.ranks[r].content;
    if (!same) files.push_back(manifest.ranks[r].file);
  }
  return fmt::format("{}", fmt::join(files, ", "));
}

}  // namespace

Result<ArtifactCheck> CheckArtifact(const Artifact& artifact) {
  const Layout& layout = artifact.layout();
  const auto plan = PlanOfEngine(layout);
  if (!plan.ok()) return Status::DataLoss("bad_artifact", artifact.path() + ": " + plan.status().message());
  ASSIGN_OR_RETURN(const MemoryDigest memory, DigestFiles(artifact, *plan));
  ArtifactCheck check{memory.totals, {}};
  const std::string files = AlteredFiles(artifact, memory);
  for (std::size_t t = 0; t < memory.totals.size(); ++t) {
    if (memory.totals[t] == artifact.manifest().digests[t]) continue;
    check.altered.push_back(
        {layout.tensors[t].name, fmt::format("{}: bytes of {} are not those of the manifest", artifact.path(), files)});
  }
  for (const Verifier::Difference& difference : memory.replica_differences) {
    check.altered.push_back({layout.tensors[static_cast<std::size_t>(difference.tensor)].name,
                             fmt::format("{}: {}", artifact.path(), difference.what)});
  }
  ASSIGN_OR_RETURN(std::vector<Artifact::Altered> padding, artifact.AlteredPadding());
  std::move(padding.begin(), padding.end(), std::back_inserter(check.altered));
  return check;
}

Status ArtifactCheck::ToStatus(const std::string& path) const {
  if (altered.empty()) return OkStatus();
  return Status::DataLoss("artifact_altered", fmt::format("{}: {} differences, the first in tensor {}: {}", path,
                                                          altered.size(), altered[0].tensor, altered[0].why));
}

}  // namespace bascule
