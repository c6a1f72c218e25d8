#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/checkpoint_files_internal.h"
#include "checkpoint/file_internal.h"

namespace bascule {
namespace {

namespace fs = std::filesystem;

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

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->path_ = path;
  ASSIGN_OR_RETURN(checkpoint->files_, OpenCheckpointFiles(path));
  const fs::path config = fs::path(path) / "config.json";
  std::error_code error;
  if (fs::exists(config, error)) {
    ASSIGN_OR_RETURN(checkpoint->config_json_, ReadTextFile(config.string(), kConfigBytesMax));
  }
  std::vector<TensorSpec> tensors;
  for (const Entry& entry : EntriesOf(checkpoint->files_)) {
    tensors.push_back(entry.spec);
    checkpoint->data_.push_back(entry.data);
  }
  checkpoint->layout_ = PlainLayout(std::move(tensors));
  return checkpoint;
}

std::span<const std::byte> Checkpoint::Data(int tensor) const { return data_[static_cast<std::size_t>(tensor)]; }

const std::byte* Checkpoint::Base(int sender_rank, int tensor) const {
  CHECK(sender_rank == 0);
  return Data(tensor).data();
}

}  // namespace bascule
