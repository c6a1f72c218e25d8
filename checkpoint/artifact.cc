#include "checkpoint/artifact.h"

#include <fmt/format.h>

#include <algorithm>

#include "bridge/manifest/manifest.h"
#include "checkpoint/checkpoint_reader_internal.h"
#include "checkpoint/file_internal.h"

namespace bascule {
namespace {

constexpr const char* kManifestName = "manifest.json";
constexpr std::int64_t kManifestBytesMax = std::int64_t{1} << 30;

Status IsAltered(std::string message) { return Status::DataLoss("artifact_altered", std::move(message)); }

// The file's tensors are the layout's: names, types and shapes.
Status CheckHeader(const SafetensorsFile& file, const RankLayout& rank) {
  const std::vector<StoredTensor>& stored = file.header().tensors;
  if (stored.size() != rank.tensors.size()) {
    return IsAltered(
        fmt::format("{}: {} tensors, {} in the manifest", file.path(), stored.size(), rank.tensors.size()));
  }
  for (const LocalTensor& wanted : rank.tensors) {
    const auto found = std::lower_bound(stored.begin(), stored.end(), wanted.name,
                                        [](const StoredTensor& a, const std::string& b) { return a.spec.name < b; });
    if (found != stored.end() && found->spec == TensorSpec{wanted.name, wanted.dtype, wanted.shape}) continue;
    return IsAltered(fmt::format("{}: no tensor {} {} {}, as the manifest says", file.path(), wanted.name,
                                 DTypeName(wanted.dtype), wanted.shape.ToString()));
  }
  return OkStatus();
}

// Per local tensor of the layout; the header is checked.
std::vector<std::span<const std::byte>> DataOf(const SafetensorsFile& file, const RankLayout& rank) {
  std::vector<std::span<const std::byte>> data;
  const std::vector<StoredTensor>& stored = file.header().tensors;
  for (const LocalTensor& tensor : rank.tensors) {
    data.push_back(
        file.Data(*std::lower_bound(stored.begin(), stored.end(), tensor.name,
                                    [](const StoredTensor& a, const std::string& b) { return a.spec.name < b; })));
  }
  return data;
}

// The logical tensor beside which `fill` lies; the local one's own name where it lies alone.
std::string PaddedBy(const Layout& layout, const RankLayout& rank, const MapRow& fill) {
  for (const MapRow& row : rank.rows) {
    if (row.local == fill.local && row.logical != kFill) {
      return layout.tensors[static_cast<std::size_t>(row.logical)].name;
    }
  }
  return rank.tensors[static_cast<std::size_t>(fill.local)].name;
}

std::int64_t FileBytes(const SafetensorsFile& file) { return file.header().data_offset + file.header().data_bytes; }

Result<std::unique_ptr<SafetensorsFile>> OpenFileOf(const Directory& directory, const std::string& name) {
  ASSIGN_OR_RETURN(OpenFile opened, directory.Open(name));
  return SafetensorsFile::Open(std::move(opened), directory.PathOf(name));
}

}  // namespace

bool Artifact::IsArtifact(const Directory& directory) {
  return directory.Has(kManifestName) || directory.Has("rank-0.safetensors");
}

Artifact::Artifact() = default;
Artifact::~Artifact() = default;

Result<std::unique_ptr<Artifact>> Artifact::Open(const Directory& directory, const ReadOptions& read) {
  std::unique_ptr<Artifact> artifact(new Artifact());
  artifact->path_ = directory.path();
  const auto text = directory.ReadText(kManifestName, kManifestBytesMax);
  if (!text.ok() && text.status().reason() == "file_not_found") {
    return Status::NotFound(
        "manifest_not_found",
        fmt::format("{}: no such file: this is no whole artifact; make it again", directory.PathOf(kManifestName)));
  }
  RETURN_IF_ERROR(text.status());
  auto parsed = ReadArtifactManifest(*text);
  if (!parsed.ok()) return parsed.status().WithContext(directory.path());
  artifact->manifest_ = *std::move(parsed);
  for (std::size_t rank = 0; rank < artifact->manifest_.ranks.size(); ++rank) {
    RETURN_IF_ERROR(CheckNotStopped(read));
    RETURN_IF_ERROR(artifact->OpenRank(directory, rank));
  }
  ASSIGN_OR_RETURN(artifact->reader_, CheckpointReader::Create(artifact->files_, read));
  return artifact;
}

Status Artifact::OpenRank(const Directory& directory, std::size_t rank) {
  const ArtifactRank& wanted = manifest_.ranks[rank];
  auto file = OpenFileOf(directory, wanted.file);
  // Damage of a file is damage of the artifact, whatever rule of the format it breaks.
  const StatusCode code = file.status().code();
  if (code == StatusCode::kDataLoss || code == StatusCode::kNotFound) return IsAltered(file.status().message());
  RETURN_IF_ERROR(file.status());
  const RankLayout& layout = manifest_.layout.ranks[rank];
  if (FileBytes(**file) != wanted.bytes) {
    return IsAltered(fmt::format("{}: {} bytes, {} in the manifest", (*file)->path(), FileBytes(**file), wanted.bytes));
  }
  RETURN_IF_ERROR(CheckHeader(**file, layout));
  data_.push_back(DataOf(**file, layout));
  files_.push_back(*std::move(file));
  return OkStatus();
}

std::vector<SourceBox> Artifact::PaddingBoxes() const {
  std::vector<SourceBox> boxes;
  for (std::size_t r = 0; r < manifest_.layout.ranks.size(); ++r) {
    const RankLayout& rank = manifest_.layout.ranks[r];
    for (const MapRow& row : rank.rows) {
      if (row.logical != kFill) continue;
      const auto t = static_cast<std::size_t>(row.local);
      const LocalTensor& tensor = rank.tensors[t];
      boxes.push_back({.base = data_[r][t].data(),
                       .item_bytes = ItemBytes(tensor.dtype),
                       .shape = ShapeOf(row.local_box),
                       .place = PlaceIn(row.local_box, tensor.shape)});
    }
  }
  return boxes;
}

Result<std::vector<Artifact::Altered>> Artifact::AlteredPadding() const {
  const std::vector<SourceBox> boxes = PaddingBoxes();
  const std::unique_ptr<BoxReader> reader = Read(boxes);
  auto box = boxes.begin();
  std::vector<Altered> altered;
  for (std::size_t r = 0; r < manifest_.layout.ranks.size(); ++r) {
    const RankLayout& rank = manifest_.layout.ranks[r];
    for (const MapRow& row : rank.rows) {
      if (row.logical != kFill) continue;
      ASSIGN_OR_RETURN(const BoxView view, reader->Next());
      // The digest of zeros is zero under any key, and of nothing else that differs in one word.
      const TensorDigest digest =
          DigestBoxOnHost(DigestKey{}, box->shape, box->item_bytes, view.base, view.place, box->place);
      ++box;
      if (digest == TensorDigest{}) continue;
      altered.push_back({PaddedBy(manifest_.layout, rank, row),
                         fmt::format("{}: padding {} of {} is not zero", files_[r]->path(), row.local_box.ToString(),
                                     rank.tensors[static_cast<std::size_t>(row.local)].name)});
    }
  }
  return altered;
}

const std::byte* Artifact::Base(int sender_rank, int tensor) const {
  return data_[static_cast<std::size_t>(sender_rank)][static_cast<std::size_t>(tensor)].data();
}

std::unique_ptr<BoxReader> Artifact::Read(std::vector<SourceBox> boxes) const { return reader_->Read(boxes); }

ReadSummary Artifact::read_summary() const { return reader_->Summary(); }

void Artifact::Release(std::span<const std::byte> memory) const { SafetensorsFile::Release(memory); }

}  // namespace bascule
