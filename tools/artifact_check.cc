#include "tools/artifact_check.h"

#include <fmt/format.h>

#include "bridge/manifest/manifest.h"
#include "engine_side/live_digest.h"

namespace bascule {
namespace {

std::span<const std::byte> MemoryOf(const Artifact& artifact, int rank, int tensor) {
  const LocalTensor& local =
      artifact.layout().ranks[static_cast<std::size_t>(rank)].tensors[static_cast<std::size_t>(tensor)];
  return {artifact.Base(rank, tensor), static_cast<std::size_t>(local.Bytes())};
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
  const MemoryDigest memory =
      DigestMemory([&](int rank, int tensor) { return MemoryOf(artifact, rank, tensor); }, layout, *plan);
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
  for (Artifact::Altered& padding : artifact.AlteredPadding()) check.altered.push_back(std::move(padding));
  return check;
}

Status ArtifactCheck::ToStatus(const std::string& path) const {
  if (altered.empty()) return OkStatus();
  return Status::DataLoss("artifact_altered", fmt::format("{}: {} differences, the first in tensor {}: {}", path,
                                                          altered.size(), altered[0].tensor, altered[0].why));
}

}  // namespace bascule
