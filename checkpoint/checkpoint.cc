#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <tuple>

#include "base/log.h"
#include "checkpoint/file_internal.h"
#include "checkpoint/shard_index_internal.h"

namespace bascule {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kConfigBytesMax = std::int64_t{16} << 20;
constexpr std::int64_t kIndexBytesMax = std::int64_t{256} << 20;
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

using Files = std::vector<std::unique_ptr<SafetensorsFile>>;

Status BadIndex(const fs::path& directory, const std::string& message) {
  return Status::DataLoss("bad_index", fmt::format("{}: {}", (directory / kIndexName).string(), message));
}

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::vector<std::string> SafetensorsNamesIn(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Every listed file is there; else all that are missing are named, with how many tensors they take along.
Status CheckFilesExist(const fs::path& directory, const ShardIndex& index) {
  std::set<std::string> missing;
  std::size_t tensors = 0;
  for (const auto& [tensor, file] : index.file_of) {
    if (Exists(directory / file)) continue;
    missing.insert(file);
    ++tensors;
  }
  if (missing.empty()) return OkStatus();
  return BadIndex(directory, fmt::format("{} listed files with {} tensors are missing: {}", missing.size(), tensors,
                                         fmt::join(missing, ", ")));
}

// The index and the headers name the same tensors in the same files.
Status CompareWithHeaders(const fs::path& directory, const ShardIndex& index, const Files& files) {
  std::set<std::pair<std::string, std::string>> stored;  // tensor, file
  std::int64_t stored_bytes = 0;
  for (const auto& file : files) {
    for (const StoredTensor& tensor : file->header().tensors) {
      stored.emplace(tensor.spec.name, fs::path(file->path()).filename().string());
      stored_bytes += tensor.data_bytes;
    }
  }
  for (const auto& [tensor, file] : index.file_of) {
    if (stored.contains({tensor, file})) continue;
    return BadIndex(directory, fmt::format("tensor={} is not in file={}", tensor, file));
  }
  for (const auto& [tensor, file] : stored) {
    const auto listed = index.file_of.find(tensor);
    if (listed != index.file_of.end() && listed->second == file) continue;
    return BadIndex(directory, fmt::format("tensor={} is in file={} but not listed so", tensor, file));
  }
  if (index.total_bytes && *index.total_bytes != stored_bytes) {
    LogWarn("index_total_size", "directory={} index={} files={}", directory.string(), *index.total_bytes, stored_bytes);
  }
  return OkStatus();
}

Result<Files> OpenSharded(const fs::path& directory) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile((directory / kIndexName).string(), kIndexBytesMax));
  const Result<ShardIndex> index = ParseShardIndex(text);
  if (!index.ok()) return BadIndex(directory, index.status().message());
  std::set<std::string> names;
  for (const auto& [tensor, file] : index->file_of) names.insert(file);
  if (Exists(directory / kSingleName) && !names.contains(kSingleName)) {
    return BadIndex(directory, fmt::format("{} is there too, but not listed: which of the two is meant?", kSingleName));
  }
  RETURN_IF_ERROR(CheckFilesExist(directory, *index));
  Files files;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open((directory / name).string()));
    files.push_back(std::move(file));
  }
  RETURN_IF_ERROR(CompareWithHeaders(directory, *index, files));
  return files;
}

Result<Files> OpenOne(const fs::path& path) {
  ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path.string()));
  Files files;
  files.push_back(std::move(file));
  return files;
}

Result<Files> OpenDirectory(const fs::path& directory) {
  if (Exists(directory / kIndexName)) return OpenSharded(directory);
  if (Exists(directory / kSingleName)) return OpenOne(directory / kSingleName);
  const std::vector<std::string> names = SafetensorsNamesIn(directory);
  if (names.size() == 1) return OpenOne(directory / names[0]);
  if (names.empty()) return Status::NotFound("no_safetensors", directory.string() + ": no .safetensors file");
  return BadIndex(directory, fmt::format("no such file, and there are {} .safetensors files: {}", names.size(),
                                         fmt::join(names, ", ")));
}

struct Entry {
  TensorSpec spec;
  std::span<const std::byte> data;
  std::string_view file;
};

// Every tensor of every file, sorted by name.
Result<std::vector<Entry>> EntriesOf(const Files& files) {
  std::vector<Entry> entries;
  for (const auto& file : files) {
    for (const StoredTensor& tensor : file->header().tensors) {
      entries.push_back({tensor.spec, file->Data(tensor), file->path()});
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.spec.name, a.file) < std::tie(b.spec.name, b.file);
  });
  for (std::size_t i = 1; i < entries.size(); ++i) {
    if (entries[i - 1].spec.name != entries[i].spec.name) continue;
    return Status::DataLoss("duplicate_tensor", fmt::format("tensor={} is in {} and in {}", entries[i].spec.name,
                                                            entries[i - 1].file, entries[i].file));
  }
  return entries;
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return Status::NotFound("checkpoint_not_found", fmt::format("{}: no such file or directory", path));
  }
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint());
  checkpoint->path_ = path;
  const fs::path config = fs::path(path) / "config.json";
  if (fs::is_directory(status)) {
    ASSIGN_OR_RETURN(checkpoint->files_, OpenDirectory(path));
    if (Exists(config)) {
      ASSIGN_OR_RETURN(checkpoint->config_json_, ReadTextFile(config.string(), kConfigBytesMax));
    }
  } else {
    ASSIGN_OR_RETURN(checkpoint->files_, OpenOne(path));
  }
  ASSIGN_OR_RETURN(const std::vector<Entry> entries, EntriesOf(checkpoint->files_));
  std::vector<TensorSpec> tensors;
  for (const Entry& entry : entries) {
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
