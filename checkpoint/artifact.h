// An artifact: a model cut for one engine layout. A directory with rank-R.safetensors for every engine rank, under the
// engine's names and in its layout, and manifest.json. Can be sent as it lies: it is a WeightSource with one rank a
// file, whose layout is the engine's, so that a plan to such an engine takes every rank's bytes from that rank's own
// file.
//
// The manifest holds the digests that the files must have. Whoever loads an artifact proves its own memory against them
// (ManifestSeal of a session), so bytes that were altered, or files that were exchanged, do not go live.
//
// Thread-safety: thread-safe once open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/plan/plan.h"
#include "bridge/send/weight_source.h"
#include "checkpoint/artifact_manifest.h"
#include "checkpoint/directory.h"
#include "checkpoint/read_strategy.h"
#include "checkpoint/safetensors.h"

namespace bascule {

class CheckpointReader;

class Artifact final : public WeightSource {
 public:
  // True for a directory that is an artifact or what is left of one: not a checkpoint.
  static bool IsArtifact(const Directory& directory);

  // Reads the manifest and the headers. Every rank file is there, has the size and the tensors that the manifest says.
  //
  // NotFound "manifest_not_found"  rank files without a manifest
  // DataLoss "artifact_altered"    names the file
  // DataLoss "bad_artifact"        a manifest that contradicts itself
  // ResourceExhausted, PermissionDenied  as SafetensorsFile::Open; as ReadOptions ask for, as Checkpoint::Open
  static Result<std::unique_ptr<Artifact>> Open(const Directory& directory, const ReadOptions& read = {});
  ~Artifact() override;

  const std::string& path() const { return path_; }
  const ArtifactManifest& manifest() const { return manifest_; }

  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }

  // Padding that is not zero, as an engine has it: by the logical tensor that it pads. Reads nothing else; fails as
  // BoxReader::Next.
  struct Altered {
    std::string tensor;
    std::string why;
  };
  Result<std::vector<Altered>> AlteredPadding() const;

  const Layout& layout() const override { return manifest_.layout; }
  const std::byte* Base(int sender_rank, int tensor) const override;
  // By the strategy of Open: nothing but what the boxes need is read.
  std::unique_ptr<BoxReader> Read(std::vector<SourceBox> boxes) const override;
  ReadSummary read_summary() const;
  void Release(std::span<const std::byte> memory) const override;

 private:
  Artifact();
  Status OpenRank(const Directory& directory, std::size_t rank);
  std::vector<SourceBox> PaddingBoxes() const;

  std::string path_;
  ArtifactManifest manifest_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;        // per rank
  std::vector<std::vector<std::span<const std::byte>>> data_;  // per rank, per local tensor
  std::unique_ptr<CheckpointReader> reader_;
};

// How a long write goes on. Called from several threads.
struct WriteControl {
  std::stop_token stop;
  std::function<void(std::int64_t total_bytes)> on_start;
  std::function<void(std::int64_t more_bytes)> on_bytes;
};

// What an artifact is made from.
struct ArtifactRecipe {
  const WeightSource* source = nullptr;  // in logical names; borrowed
  Layout layout;                         // the engine's, with its storage types
  Layout stored;                         // one rank: the source's own tensors, in its own types; for the way back
  ArtifactFingerprint fingerprint;
  ModelOrigin origin;
  std::string config_json;
  std::vector<QuantizationFamily> families;  // of the layout's tensors
  std::vector<std::string> ignore;           // patterns of logical names that may be left out
  std::vector<std::string> dropped;          // tensors that the source leaves out itself
  // The version digest of what was quantised to make `source`; nothing where it is stored as it is.
  std::optional<Hash256> source_digest = {};
};

// Writes a whole artifact to the new directory `out`, or nothing: see OutputDirectory. Streams: memory is a few blocks,
// whatever the model's size. Gives the manifest, which names the files, and what the plan says of the names.
//
// AlreadyExists "output_exists"; NotFound "directory_not_found"; PermissionDenied "file_not_writable"
// ResourceExhausted "disk_full"; Unavailable "write_failed"; Cancelled "cancelled"; as MakePlan
Result<ArtifactManifest> WriteArtifact(ArtifactRecipe recipe, const std::string& out, const WriteControl& control);

// The inverse: model.safetensors under the source's names, and config.json, in the new directory `out`. Tensors are the
// source's to the bit where the artifact kept their types.
//
// DataLoss "artifact_altered"  the bytes read are not those of the manifest: names the tensor; nothing is left of `out`
// else as WriteArtifact
Status UnshardArtifact(const Artifact& artifact, const std::string& out, const WriteControl& control);

}  // namespace bascule
