#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "checkpoint/checkpoint_files_internal.h"
#include "checkpoint/checkpoint_reader_internal.h"
#include "checkpoint/file_internal.h"

namespace bascule {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "config.json";
constexpr std::int64_t kConfigBytesMax = std::int64_t{16} << 20;

struct Entry {
  TensorSpec spec;
  std::span<const std::byte> data;
};

// Every tensor of every file, sorted by name.
std::vector<Entry> EntriesOf(const CheckpointFiles& files) {
  std::vector<Entry> entries;
  for (const auto& file : files) {
    for (const StoredTensor& tensor : file->header().tensors) entries.push_back({tensor.spec, file->Data(tensor)});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.spec.name < b.spec.name; });
  return entries;
}

}  // namespace

Checkpoint::Checkpoint() = default;
Checkpoint::~Checkpoint() = default;

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path, const ReadOptions& read) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return Status::NotFound("checkpoint_not_found", fmt::format("{}: no such file or directory", path));
  }
  if (fs::is_directory(status)) return Open(Directory::At(path), read);
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->path_ = path;
  ASSIGN_OR_RETURN(checkpoint->files_, OpenCheckpointFile(path, read));
  RETURN_IF_ERROR(checkpoint->Finish(read));
  return checkpoint;
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const Directory& directory, const ReadOptions& read) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->path_ = directory.path();
  ASSIGN_OR_RETURN(checkpoint->files_, OpenCheckpointFiles(directory, read));
  if (directory.Has(kConfigName)) {
    ASSIGN_OR_RETURN(checkpoint->config_json_, directory.ReadText(kConfigName, kConfigBytesMax));
  }
  RETURN_IF_ERROR(checkpoint->Finish(read));
  return checkpoint;
}

// What follows from the files.
Status Checkpoint::Finish(const ReadOptions& read) {
  RETURN_IF_ERROR(CheckNotStopped(read));
  ASSIGN_OR_RETURN(reader_, CheckpointReader::Create(files_, read));
  std::vector<TensorSpec> tensors;
  for (const Entry& entry : EntriesOf(files_)) {
    tensors.push_back(entry.spec);
    data_.push_back(entry.data);
  }
  layout_ = PlainLayout(std::move(tensors));
  return OkStatus();
}

std::span<const std::byte> Checkpoint::Data(int tensor) const { return data_[static_cast<std::size_t>(tensor)]; }

const std::byte* Checkpoint::Base(int sender_rank, int tensor) const {
  CHECK(sender_rank == 0);
  return Data(tensor).data();
}

std::unique_ptr<BoxReader> Checkpoint::Read(std::vector<SourceBox> boxes) const { return reader_->Read(boxes); }

ReadSummary Checkpoint::read_summary() const { return reader_->Summary(); }

Result<bool> Checkpoint::SameBytes(int a, int b) const {
  constexpr std::int64_t kPieceBytes = 1 << 20;
  const std::span<const std::byte> of_a = Data(a);
  const std::span<const std::byte> of_b = Data(b);
  if (of_a.size() != of_b.size()) return false;
  std::vector<SourceBox> pieces;
  for (std::int64_t at = 0; at < std::ssize(of_a); at += kPieceBytes) {
    const BoxShape shape{.dims = 1, .count = {std::min(kPieceBytes, std::ssize(of_a) - at)}};
    const BoxPlace place{.offset = at, .stride = {1}};
    pieces.push_back({of_a.data(), 1, shape, place});
    pieces.push_back({of_b.data(), 1, shape, place});
  }
  const std::unique_ptr<BoxReader> reader = Read(pieces);
  std::vector<std::byte> piece;
  for (std::size_t i = 0; i < pieces.size(); i += 2) {
    ASSIGN_OR_RETURN(const BoxView view_a, reader->Next());
    const std::byte* first = view_a.base + view_a.place.offset;
    piece.assign(first, first + pieces[i].shape.count[0]);
    ASSIGN_OR_RETURN(const BoxView view_b, reader->Next());
    if (std::memcmp(piece.data(), view_b.base + view_b.place.offset, piece.size()) != 0) return false;
  }
  return true;
}

}  // namespace bascule
