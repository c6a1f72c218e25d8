#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "bridge/manifest/manifest.h"
#include "checkpoint/artifact.h"
#include "checkpoint/plan_writer_internal.h"

namespace bascule {
namespace {

std::string RankFileName(std::size_t rank) { return fmt::format("rank-{}.safetensors", rank); }

// Whatever the engine took of the source; the rest is in no file.
std::vector<std::string> NotWritten(const NameSets& names, std::vector<std::string> dropped) {
  dropped.insert(dropped.end(), names.ignored.begin(), names.ignored.end());
  std::sort(dropped.begin(), dropped.end());
  return dropped;
}

// The way back for what was written: rows to the engine's logical tensors, in the types that these have now.
Layout StoredOnto(const Layout& engine, const Layout& stored) {
  Layout result;
  result.tensors = engine.tensors;
  RankLayout& rank = result.ranks.emplace_back();
  const RankLayout& source = stored.ranks.at(0);
  std::unordered_map<std::string_view, std::int32_t> logical_of;
  for (const TensorSpec& tensor : engine.tensors) {
    logical_of.emplace(tensor.name, static_cast<std::int32_t>(logical_of.size()));
  }
  std::vector<std::int32_t> local_of(source.tensors.size(), -1);
  for (const MapRow& row : source.rows) {
    const auto found = logical_of.find(stored.tensors[static_cast<std::size_t>(row.logical)].name);
    if (found == logical_of.end()) continue;  // ignored
    std::int32_t& local = local_of[static_cast<std::size_t>(row.local)];
    if (local < 0) {
      local = static_cast<std::int32_t>(rank.tensors.size());
      rank.tensors.push_back(source.tensors[static_cast<std::size_t>(row.local)]);
      rank.tensors.back().dtype = engine.tensors[static_cast<std::size_t>(found->second)].dtype;
    }
    rank.rows.push_back(
        {.local = local, .local_box = row.local_box, .logical = found->second, .logical_box = row.logical_box});
  }
  return result;
}

ArtifactManifest ManifestOf(ArtifactRecipe recipe, const WrittenFiles& written) {
  ArtifactManifest manifest;
  manifest.fingerprint = std::move(recipe.fingerprint);
  manifest.origin = std::move(recipe.origin);
  manifest.config_json = std::move(recipe.config_json);
  manifest.families = std::move(recipe.families);
  manifest.digests = written.totals;
  manifest.version_digest = VersionDigestOf(recipe.layout.tensors, written.totals);
  manifest.source_digest = recipe.source_digest.value_or(manifest.version_digest);
  manifest.stored = StoredOnto(recipe.layout, recipe.stored);
  manifest.ignored = NotWritten(written.names, std::move(recipe.dropped));
  for (std::size_t rank = 0; rank < written.file_bytes.size(); ++rank) {
    manifest.ranks.push_back({.file = RankFileName(rank),
                              .bytes = written.file_bytes[rank],
                              .content = VersionDigestOf(recipe.layout.tensors, written.held_by_rank[rank])});
  }
  manifest.layout = std::move(recipe.layout);
  return manifest;
}

}  // namespace

Result<ArtifactManifest> WriteArtifact(ArtifactRecipe recipe, const std::string& out, const WriteControl& control) {
  ASSIGN_OR_RETURN(const auto directory, OutputDirectory::Create(out));
  std::vector<std::string> files;
  for (std::size_t rank = 0; rank < recipe.layout.ranks.size(); ++rank) files.push_back(RankFileName(rank));
  ASSIGN_OR_RETURN(const WrittenFiles written,
                   WritePlanned(*recipe.source, recipe.layout, recipe.ignore, files, *directory, control));
  ArtifactManifest manifest = ManifestOf(std::move(recipe), written);
  RETURN_IF_ERROR(directory->WriteFile("manifest.json", WriteArtifactManifest(manifest)));
  RETURN_IF_ERROR(directory->Commit());
  return manifest;
}

Status UnshardArtifact(const Artifact& artifact, const std::string& out, const WriteControl& control) {
  const ArtifactManifest& manifest = artifact.manifest();
  ASSIGN_OR_RETURN(const auto directory, OutputDirectory::Create(out));
  ASSIGN_OR_RETURN(const WrittenFiles written,
                   WritePlanned(artifact, manifest.stored, /*ignore=*/{}, {"model.safetensors"}, *directory, control));
  for (std::size_t t = 0; t < manifest.digests.size(); ++t) {
    if (written.totals[t] == manifest.digests[t]) continue;
    return Status::DataLoss("artifact_altered", fmt::format("{}: tensor {}: its bytes are not those of the manifest",
                                                            artifact.path(), manifest.layout.tensors[t].name));
  }
  RETURN_IF_ERROR(directory->WriteFile("config.json", manifest.config_json));
  return directory->Commit();
}

}  // namespace bascule
