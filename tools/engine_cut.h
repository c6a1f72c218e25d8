// How a model is cut for an engine: the layout, and the fingerprint by which artifacts know it.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include "base/status.h"
#include "checkpoint/artifact_manifest.h"
#include "model/engine_layout.h"
#include "tools/logical_checkpoint.h"

namespace bascule {

// What an engine of this parallel layout and type would be cut for, from this checkpoint's or artifact's tensors.
//
// what `checkpoint.config()` says
Result<ArtifactFingerprint> FingerprintOf(const LogicalCheckpoint& checkpoint, const ParallelLayout& parallel,
                                          WantedDType wanted);

// As MakeEngineLayout, in the types that an engine has of this checkpoint; errors name the file.
Result<EngineLayout> EngineLayoutOf(const LogicalCheckpoint& checkpoint, const ParallelLayout& parallel,
                                    WantedDType wanted);

// An artifact serves the engine that it was cut for, and no other. OK for a checkpoint, which serves any.
//
// FailedPrecondition "fingerprint_mismatch"  both, spelled out
Status CheckFingerprint(const LogicalCheckpoint& checkpoint, const ArtifactFingerprint& engine);
// FailedPrecondition "layout_mismatch"  cut under the same fingerprint by other rules
Status CheckCut(const LogicalCheckpoint& checkpoint, const Layout& engine);

// The parallel layout that an artifact was cut for.
ParallelLayout ParallelOf(const ArtifactFingerprint& fingerprint);

}  // namespace bascule
