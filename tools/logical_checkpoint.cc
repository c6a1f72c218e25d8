#include "tools/logical_checkpoint.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "bridge/send/source_digest.h"
#include "checkpoint/quantized_source.h"
#include "model/weight_family.h"
#include "tools/artifact_check.h"

namespace bascule {
namespace {

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

Result<ModelConfig> ConfigOf(const std::string& config_json, const std::string& path) {
  if (config_json.empty()) return Status::NotFound("no_config", fmt::format("{} has no config.json", path));
  auto config = ParseModelConfig(config_json);
  if (!config.ok()) return config.status().WithContext(fmt::format("config.json of {}", path));
  return config;
}

// Also for architectures that no table describes.
bool IsTied(const std::string& config_json) {
  const auto config = nlohmann::json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  return config.is_object() && config.contains("tie_word_embeddings") && config["tie_word_embeddings"] == true;
}

// A checkpoint's memory under another map.
class NamedSource final : public WeightSource {
 public:
  NamedSource(const Checkpoint& stored, Layout layout) : stored_(stored), layout_(std::move(layout)) {}
  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int sender_rank, int tensor) const override { return stored_.Base(sender_rank, tensor); }
  std::unique_ptr<BoxReader> Read(std::vector<SourceBox> boxes) const override {
    return stored_.Read(std::move(boxes));
  }
  void Release(std::span<const std::byte> memory) const override { stored_.Release(memory); }

 private:
  const Checkpoint& stored_;
  const Layout layout_;
};

// The one row that brings a whole logical tensor; null where there is none.
const MapRow* WholeRowOf(const Layout& layout, std::string_view name) {
  for (const MapRow& row : layout.ranks[0].rows) {
    const TensorSpec& tensor = layout.tensors[static_cast<std::size_t>(row.logical)];
    if (tensor.name == name) return row.logical_box == Box::Whole(tensor.shape) ? &row : nullptr;
  }
  return nullptr;
}

// The head of a tied model that equals the embedding becomes a second use of it.
Status MergeTiedHead(const Checkpoint& stored, bool tied, Layout& layout) {
  const MapRow* head = WholeRowOf(layout, kHead);
  const MapRow* embedding = WholeRowOf(layout, kEmbedding);
  if (head == nullptr || embedding == nullptr || !tied) return OkStatus();
  const TensorSpec& of_head = layout.tensors[static_cast<std::size_t>(head->logical)];
  const TensorSpec& twin = layout.tensors[static_cast<std::size_t>(embedding->logical)];
  if (of_head.dtype != twin.dtype || of_head.shape != twin.shape) return OkStatus();
  ASSIGN_OR_RETURN(const bool same, stored.SameBytes(head->local, embedding->local));
  const auto row = static_cast<std::size_t>(head - layout.ranks[0].rows.data());
  if (same) layout.ranks[0].rows[row].logical = embedding->logical;
  return OkStatus();
}

// Leaves out the logical tensors that no row brings, or that are in `names`; gives the stored names that are left out.
std::vector<std::string> DropTensors(const std::vector<std::string>& names, Layout& layout) {
  RankLayout& rank = layout.ranks[0];
  const std::unordered_set<std::string_view> dropped(names.begin(), names.end());
  std::vector<std::string> left_out;
  std::vector<std::int32_t> new_index(layout.tensors.size(), -1);
  std::vector<TensorSpec> tensors;
  std::vector<MapRow> rows;
  for (MapRow row : rank.rows) {
    const TensorSpec& tensor = layout.tensors[static_cast<std::size_t>(row.logical)];
    if (dropped.contains(tensor.name)) {
      left_out.push_back(rank.tensors[static_cast<std::size_t>(row.local)].name);
      continue;
    }
    std::int32_t& index = new_index[static_cast<std::size_t>(row.logical)];
    if (index < 0) {
      index = static_cast<std::int32_t>(tensors.size());
      tensors.push_back(tensor);
    }
    row.logical = index;
    rows.push_back(std::move(row));
  }
  layout.tensors = std::move(tensors);
  rank.rows = std::move(rows);
  return left_out;
}

// The strides of a row's local box, one for each dimension of its logical box.
Dims StrideOf(const MapRow& row, const Dims& local_stride) {
  const BoxPlace place = PlaceInStrided(row.local_box, local_stride);
  Dims stride;
  std::size_t kept = 0;
  for (const std::int64_t count : row.logical_box.extent) stride.push_back(count == 1 ? 0 : place.stride[kept++]);
  return stride;
}

}  // namespace

LogicalCheckpoint::LogicalCheckpoint(std::string path, std::unique_ptr<Checkpoint> stored,
                                     std::unique_ptr<Artifact> artifact, Result<ModelConfig> config)
    : path_(std::move(path)), stored_(std::move(stored)), artifact_(std::move(artifact)), config_(std::move(config)) {}

Result<LogicalCheckpoint> LogicalCheckpoint::Open(const std::string& path, const ReadOptions& read) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return Open(Directory::At(path), read);
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> stored, Checkpoint::Open(path, read));
  return Of(std::move(stored));
}

Result<LogicalCheckpoint> LogicalCheckpoint::Open(const Directory& directory, const ReadOptions& read) {
  if (Artifact::IsArtifact(directory)) {
    ASSIGN_OR_RETURN(std::unique_ptr<Artifact> artifact, Artifact::Open(directory, read));
    return Of(std::move(artifact));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> stored, Checkpoint::Open(directory, read));
  return Of(std::move(stored));
}

Result<LogicalCheckpoint> LogicalCheckpoint::Of(std::unique_ptr<Artifact> artifact) {
  const std::string path = artifact->path();
  auto config = ConfigOf(artifact->manifest().config_json, path);
  LogicalCheckpoint checkpoint(path, nullptr, std::move(artifact), std::move(config));
  checkpoint.source_ = checkpoint.artifact_.get();
  return checkpoint;
}

Result<LogicalCheckpoint> LogicalCheckpoint::Of(std::unique_ptr<Checkpoint> stored) {
  const std::string path = stored->path();
  auto config = ConfigOf(stored->config_json(), path);
  // A broken config is an error; one that is missing, or of a model that no table describes, leaves what needs none.
  if (!config.ok() && config.status().reason() == "bad_config") return config.status();
  LogicalCheckpoint checkpoint(path, std::move(stored), nullptr, std::move(config));
  RETURN_IF_ERROR(checkpoint.MapNames());
  return checkpoint;
}

Status LogicalCheckpoint::MapNames() {
  std::vector<std::string> ignored;
  Layout layout = stored_->layout();
  if (config_.ok()) {
    ASSIGN_OR_RETURN(layout, CanonicalSenderLayout(*config_, stored_->layout(), &ignored));
  }
  RETURN_IF_ERROR(MergeTiedHead(*stored_, config_.ok() ? config_->tied_head : IsTied(stored_->config_json()), layout));
  std::erase(ignored, kHead);  // one that differs is a tensor that the engine does not expect
  dropped_ = DropTensors(ignored, layout);
  named_ = std::make_unique<NamedSource>(*stored_, std::move(layout));
  source_ = named_.get();
  return OkStatus();
}

Status LogicalCheckpoint::QuantizeFp8Blocks(WantedDType wanted, const std::stop_token& stop) {
  RETURN_IF_ERROR(config_.status());
  if (!config_->quantization.method.empty()) {
    return Status::FailedPrecondition("already_quantized",
                                      fmt::format("{}: {}", path_, config_->quantization.ToString()));
  }
  ModelConfig config = *config_;
  config.quantization = Fp8BlockQuantization();
  ASSIGN_OR_RETURN(const std::vector<QuantizationFamily> families, QuantizationFamilies(config));
  std::vector<QuantizedWeight> weights;
  std::unordered_set<std::string_view> names;
  for (const QuantizationFamily& family : families) {
    weights.push_back({family.members[0], family.members[1]});
    names.insert(family.members[0]);
  }
  for (const TensorSpec& tensor : tensors()) {
    if (!names.contains(tensor.name) || tensor.dtype != DType::kF32 || wanted == WantedDType::kBf16) continue;
    return Status::InvalidArgument("quantize_needs_bf16",
                                   fmt::format("{}: {} is F32; --dtype bf16 rounds it first", path_, tensor.name));
  }
  ASSIGN_OR_RETURN(quantized_, QuantizedSource::Make(*source_, weights, stop));
  source_ = quantized_.get();
  config_ = std::move(config);
  auto json = nlohmann::ordered_json::parse(stored_->config_json());
  json["quantization_config"] = nlohmann::ordered_json::parse(Fp8BlockConfigJson());
  quantized_config_json_ = json.dump(2) + "\n";
  return OkStatus();
}

const std::string& LogicalCheckpoint::config_json() const {
  if (quantized_ != nullptr) return quantized_config_json_;
  return artifact_ != nullptr ? artifact_->manifest().config_json : stored_->config_json();
}

DType StorageDType(const TensorSpec& stored, WantedDType wanted) {
  const bool convertible = (stored.dtype == DType::kBf16 || stored.dtype == DType::kF32) && !EndsAsScale(stored.name);
  if (wanted == WantedDType::kKeep || !convertible) return stored.dtype;
  return wanted == WantedDType::kBf16 ? DType::kBf16 : DType::kF32;
}

DTypeOf EngineTypesOf(const LogicalCheckpoint& checkpoint, WantedDType wanted) {
  std::unordered_map<std::string, DType> types;
  for (const TensorSpec& tensor : checkpoint.tensors()) types[tensor.name] = StorageDType(tensor, wanted);
  const DType other = checkpoint.tensors().empty() ? DType::kBf16 : types[checkpoint.tensors().front().name];
  return [types = std::move(types), other](std::string_view name) {
    const auto found = types.find(std::string(name));
    return found == types.end() ? other : found->second;
  };
}

Result<CheckpointDigest> DigestCheckpoint(const LogicalCheckpoint& checkpoint, std::vector<TensorSpec> specs) {
  CheckpointDigest digest{std::move(specs), {}, {}};
  if (checkpoint.artifact() != nullptr) {
    ASSIGN_OR_RETURN(ArtifactCheck check, CheckArtifact(*checkpoint.artifact()));
    RETURN_IF_ERROR(check.ToStatus(checkpoint.path()));
    if (digest.tensors == checkpoint.tensors()) digest.digests = std::move(check.digests);
  }
  if (digest.digests.empty()) {
    ASSIGN_OR_RETURN(digest.digests, DigestSource(checkpoint.source(), digest.tensors, /*threads=*/0));
  }
  digest.version_digest = VersionDigestOf(digest.tensors, digest.digests);
  return digest;
}

Result<TensorSource> TensorSourceOf(const WeightSource& source) {
  const Layout& layout = source.layout();
  TensorSource tensors(static_cast<int>(layout.ranks.size()), source);
  for (std::size_t r = 0; r < layout.ranks.size(); ++r) {
    std::set<std::pair<std::int32_t, Box>> added;  // a second use of the same elements adds nothing
    for (const MapRow& row : layout.ranks[r].rows) {
      if (row.logical == kFill || !added.emplace(row.logical, row.logical_box).second) continue;
      const LocalTensor& local = layout.ranks[r].tensors[static_cast<std::size_t>(row.local)];
      const Dims stride = local.stride.empty() ? RowMajorStride(local.shape) : local.stride;
      const std::int64_t offset = PlaceInStrided(row.local_box, stride).offset * ItemBytes(local.dtype);
      RETURN_IF_ERROR(tensors.Add(static_cast<int>(r), {.tensor = layout.tensors[static_cast<std::size_t>(row.logical)],
                                                        .box = row.logical_box,
                                                        .data = source.Base(static_cast<int>(r), row.local) + offset,
                                                        .stride = StrideOf(row, stride)}));
    }
  }
  return tensors;
}

}  // namespace bascule
