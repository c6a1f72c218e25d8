// manifest.json of an artifact: what the version is (as a session's manifest, offer and seal in one), which engine it
// was cut for, what every rank's file holds, and the map back to the source's own tensors.
//
// Thread-safety: thread-compatible (values); the functions are pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "bridge/layout/layout.h"
#include "bridge/manifest/manifest.h"
#include "kernels/digest.h"

namespace bascule {

// What an artifact was cut for. An engine that differs in any of it refuses the artifact.
struct ArtifactFingerprint {
  std::string architecture;  // and its sizes, in one line
  int tensor = 1, pipeline = 1;
  bool expert_parallel = false;
  std::string dtype;         // of the stored tensors: "BF16", or all that occur: "BF16,F32"
  std::string quantization;  // "none", or the scheme
  // One line: two fingerprints are equal when these are.
  std::string ToString() const;
  friend bool operator==(const ArtifactFingerprint&, const ArtifactFingerprint&) = default;
};

// Where the weights come from; empty where that is not known.
struct ModelOrigin {
  std::string model_id;
  std::string model_revision;      // a commit
  std::string tokenizer_revision;  // SHA-256 over the tokenizer's files
  friend bool operator==(const ModelOrigin&, const ModelOrigin&) = default;
};

struct ArtifactRank {
  std::string file;        // in the artifact's directory
  std::int64_t bytes = 0;  // of the file
  Hash256 content;         // as a version digest, of what this rank holds of each logical tensor
  friend bool operator==(const ArtifactRank&, const ArtifactRank&) = default;
};

struct ArtifactManifest {
  ArtifactFingerprint fingerprint;
  ModelOrigin origin;
  std::string config_json;                   // of the source, to the byte
  Layout layout;                             // what each rank's file holds, under an engine's names
  std::vector<TensorDigest> digests;         // of the logical tensors
  Hash256 version_digest;                    // of them
  std::vector<QuantizationFamily> families;  // of them: what only means something together
  Hash256 source_digest;  // the source's version digest; another one where the weights were quantised
  std::vector<ArtifactRank> ranks;
  Layout stored;                     // one rank: the source's own tensors on the same logical ones
  std::vector<std::string> ignored;  // tensors of the source that are in no file
  friend bool operator==(const ArtifactManifest&, const ArtifactManifest&) = default;
};

// JSON, one object. Its last member "sha256" is over all bytes before it, so that a changed manifest is noticed.
std::string WriteArtifactManifest(const ArtifactManifest& manifest);

// Read as hostile input: layouts pass CheckLayout, counts agree, rank files are plain names.
//
// DataLoss "artifact_altered"  the text is not the one that was written
// DataLoss "bad_artifact"      it was written so, and breaks a rule: names it
Result<ArtifactManifest> ReadArtifactManifest(std::string_view text);

}  // namespace bascule
