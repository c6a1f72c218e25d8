#include "tools/engine_cut.h"

#include <fmt/format.h>

#include <set>

namespace bascule {

Result<ArtifactFingerprint> FingerprintOf(const LogicalCheckpoint& checkpoint, const ParallelLayout& parallel,
                                          WantedDType wanted) {
  RETURN_IF_ERROR(checkpoint.config().status());
  const ModelConfig& config = *checkpoint.config();
  std::set<std::string_view> types;
  for (const TensorSpec& tensor : checkpoint.tensors()) types.insert(DTypeName(StorageDType(tensor, wanted)));
  return ArtifactFingerprint{
      .architecture = config.Description(),
      .tensor = parallel.tensor,
      .pipeline = parallel.pipeline,
      .expert_parallel = parallel.expert_parallel,
      .dtype = fmt::format("{}", fmt::join(types, ",")),
      .quantization = config.quantization.method.empty() ? "none" : config.quantization.ToString()};
}

Result<EngineLayout> EngineLayoutOf(const LogicalCheckpoint& checkpoint, const ParallelLayout& parallel,
                                    WantedDType wanted) {
  RETURN_IF_ERROR(checkpoint.config().status());
  auto layout = MakeEngineLayout(*checkpoint.config(), EngineTypesOf(checkpoint, wanted), parallel);
  if (!layout.ok()) return layout.status().WithContext(checkpoint.path());
  return layout;
}

Status CheckFingerprint(const LogicalCheckpoint& checkpoint, const ArtifactFingerprint& engine) {
  if (checkpoint.artifact() == nullptr || checkpoint.artifact()->manifest().fingerprint == engine) return OkStatus();
  return Status::FailedPrecondition(
      "fingerprint_mismatch", fmt::format("{}: the artifact is for {{{}}}, the engine is {{{}}}", checkpoint.path(),
                                          checkpoint.artifact()->manifest().fingerprint.ToString(), engine.ToString()));
}

Status CheckCut(const LogicalCheckpoint& checkpoint, const Layout& engine) {
  if (checkpoint.artifact() == nullptr || checkpoint.artifact()->layout() == engine) return OkStatus();
  return Status::FailedPrecondition("layout_mismatch",
                                    fmt::format("{}: cut by other rules; make it again", checkpoint.path()));
}

ParallelLayout ParallelOf(const ArtifactFingerprint& fingerprint) {
  return {
      .tensor = fingerprint.tensor, .pipeline = fingerprint.pipeline, .expert_parallel = fingerprint.expert_parallel};
}

}  // namespace bascule
