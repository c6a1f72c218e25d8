#include "tools/logical_checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "bridge/send/source_digest.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

Result<ModelConfig> ConfigOf(const Checkpoint& stored) {
  if (stored.config_json().empty()) {
    return Status::NotFound("no_config", fmt::format("{} has no config.json", stored.path()));
  }
  auto config = ParseModelConfig(stored.config_json());
  if (!config.ok()) return config.status().WithContext(fmt::format("config.json of {}", stored.path()));
  return config;
}

// Also for architectures that no engine of ours runs.
bool IsTied(const std::string& config_json) {
  const auto config = nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  return config.is_object() && config.contains("tie_word_embeddings") && config["tie_word_embeddings"] == true;
}

}  // namespace

LogicalCheckpoint::LogicalCheckpoint(std::unique_ptr<Checkpoint> stored, Result<ModelConfig> config)
    : stored_(std::move(stored)), config_(std::move(config)), source_(/*trainer_ranks=*/1, *stored_) {}

Result<LogicalCheckpoint> LogicalCheckpoint::Open(const std::string& path, const ReadOptions& read) {
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> stored, Checkpoint::Open(path, read));
  auto config = ConfigOf(*stored);
  // A broken config is an error; one that is missing, or of a model that we cannot run, leaves what needs none.
  if (!config.ok() && config.status().reason() == "bad_config") return config.status();
  LogicalCheckpoint checkpoint(std::move(stored), std::move(config));
  RETURN_IF_ERROR(checkpoint.AddTensors());
  return checkpoint;
}

Status LogicalCheckpoint::AddTensors() {
  std::vector<std::string> ignored;
  Layout canonical = stored_->layout();
  if (config_.ok()) {
    ASSIGN_OR_RETURN(canonical, CanonicalSenderLayout(*config_, stored_->layout(), &ignored));
  }
  for (const MapRow& row : canonical.ranks[0].rows) {
    ASSIGN_OR_RETURN(const bool dropped, IsDropped(canonical, row, ignored));
    if (dropped) continue;
    const TensorSpec& tensor = canonical.tensors[static_cast<std::size_t>(row.logical)];
    // A stored tensor is one logical tensor or several, one behind the other: each is contiguous.
    const Dims& stored_shape = canonical.ranks[0].tensors[static_cast<std::size_t>(row.local)].shape;
    const std::byte* const data =
        stored_->Base(0, row.local) + PlaceIn(row.local_box, stored_shape).offset * ItemBytes(tensor.dtype);
    RETURN_IF_ERROR(source_.Add(0, {.tensor = tensor, .box = row.logical_box, .data = data, .stride = {}}));
  }
  return OkStatus();
}

Result<bool> LogicalCheckpoint::IsDropped(const Layout& canonical, const MapRow& row,
                                          const std::vector<std::string>& ignored) const {
  const auto tensor_of = [&](const MapRow& r) { return canonical.tensors[static_cast<std::size_t>(r.logical)]; };
  const TensorSpec tensor = tensor_of(row);
  if (tensor.name != kHead) return std::find(ignored.begin(), ignored.end(), tensor.name) != ignored.end();
  if (!IsTied(stored_->config_json())) return false;
  const auto& rows = canonical.ranks[0].rows;
  const auto twin =
      std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return tensor_of(r).name == kEmbedding; });
  if (twin == rows.end() || tensor_of(*twin).dtype != tensor.dtype || tensor_of(*twin).shape != tensor.shape) {
    return false;
  }
  return stored_->SameBytes(row.local, twin->local);
}

DType StorageDType(DType stored, WantedDType wanted) {
  const bool convertible = stored == DType::kBf16 || stored == DType::kF32;
  if (wanted == WantedDType::kKeep || !convertible) return stored;
  return wanted == WantedDType::kBf16 ? DType::kBf16 : DType::kF32;
}

Result<CheckpointDigest> DigestCheckpoint(const LogicalCheckpoint& checkpoint, std::vector<TensorSpec> specs) {
  CheckpointDigest digest{std::move(specs), {}, {}};
  ASSIGN_OR_RETURN(digest.digests, DigestSource(checkpoint.source(), digest.tensors, /*threads=*/0));
  digest.version_digest = VersionDigestOf(digest.tensors, digest.digests);
  return digest;
}

}  // namespace bascule
