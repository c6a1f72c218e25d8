// Do an artifact's files hold what its manifest says? Their bytes are read as an engine reads its memory, through the
// manifest's map, and compared with its digests.
//
// Thread-safety: thread-safe.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/artifact.h"
#include "kernels/digest.h"

namespace bascule {

struct ArtifactCheck {
  std::vector<TensorDigest> digests;  // of the bytes, per logical tensor in layout order
  std::vector<Artifact::Altered> altered;

  // DataLoss "artifact_altered"  names the first tensor and counts them
  Status ToStatus(const std::string& path) const;
};

// Reads every byte, as the artifact was opened to be read.
//
// DataLoss "bad_artifact"  the map does not cover the tensors; as BoxReader::Next
Result<ArtifactCheck> CheckArtifact(const Artifact& artifact);

}  // namespace bascule
