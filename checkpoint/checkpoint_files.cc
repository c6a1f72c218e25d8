#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/log.h"
#include "checkpoint/checkpoint_files_internal.h"
#include "checkpoint/file_internal.h"
#include "checkpoint/foreign_file_internal.h"
#include "checkpoint/shard_index_internal.h"

namespace bascule {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kIndexBytesMax = std::int64_t{256} << 20;
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

// tensor -> the names of all files that hold it
using Places = std::map<std::string, std::set<std::string>>;

Status IndexError(std::string_view reason, const Directory& directory, const std::string& message) {
  return Status::DataLoss(reason, fmt::format("{}: {}", directory.PathOf(kIndexName), message));
}

std::vector<std::string> NamesIn(const Directory& directory, const std::set<std::string>& extensions) {
  std::vector<std::string> names = directory.Names();
  std::erase_if(names, [&](const auto& name) { return !extensions.contains(fs::path(name).extension().string()); });
  return names;
}

Result<ShardIndex> ReadIndex(const Directory& directory) {
  ASSIGN_OR_RETURN(const std::string text, directory.ReadText(kIndexName, kIndexBytesMax));
  Result<ShardIndex> index = ParseShardIndex(text);
  if (index.ok()) return index;
  const std::string kind = ForeignKind(std::as_bytes(std::span(text)));
  const bool is_foreign = !kind.empty() && kind != "a text file";
  return IndexError(index.status().reason(), directory, is_foreign ? kind : index.status().message());
}

// Every listed file is there; else all that are missing are named, with how many tensors they take along.
Status CheckFilesExist(const Directory& directory, const ShardIndex& index) {
  std::map<std::string, std::int64_t> tensors_of;
  for (const auto& [tensor, file] : index.file_of) ++tensors_of[file];
  std::set<std::string> missing;
  std::int64_t tensors = 0;
  for (const auto& [file, count] : tensors_of) {
    if (directory.Has(file)) continue;
    missing.insert(file);
    tensors += count;
  }
  if (missing.empty()) return OkStatus();
  return IndexError("shard_missing", directory,
                    fmt::format("{} of {} listed files, with {} tensors, are missing: {}", missing.size(),
                                tensors_of.size(), tensors, fmt::join(missing, ", ")));
}

bool LiesIn(const fs::path& path, const fs::path& directory) {
  return std::mismatch(directory.begin(), directory.end(), path.begin(), path.end()).first == directory.end();
}

// A link may not lead out of the checkpoint. The one that the Hugging Face cache makes is part of its layout:
// snapshots/REVISION/NAME -> ../../blobs/HASH.
Status CheckInside(const Directory& directory, const SafetensorsFile& file) {
  if (directory.is_confined()) return OkStatus();  // the kernel has seen to it
  std::error_code error;
  const fs::path home = fs::canonical(directory.path(), error);
  if (!error && LiesIn(file.real_path(), home)) return OkStatus();
  const fs::path snapshots = home.parent_path();
  if (!error && snapshots.filename() == "snapshots" && LiesIn(file.real_path(), snapshots.parent_path() / "blobs")) {
    return OkStatus();
  }
  return Status::DataLoss("outside_directory",
                          fmt::format("{}: is a link to a file outside the checkpoint", file.path()));
}

Places PlacesOf(const CheckpointFiles& files) {
  Places places;
  for (const auto& file : files) {
    const std::string name = fs::path(file->path()).filename().string();
    for (const StoredTensor& tensor : file->header().tensors) places[tensor.spec.name].insert(name);
  }
  return places;
}

Status CheckNoneTwice(const Directory& directory, const Places& places) {
  for (const auto& [tensor, files] : places) {
    if (files.size() == 1) continue;
    return Status::DataLoss("duplicate_tensor", fmt::format("{}: tensor={} is in {}", directory.path(), tensor,
                                                            fmt::join(files, " and in ")));
  }
  return OkStatus();
}

Status CompareWithHeaders(const Directory& directory, const ShardIndex& index, const Places& places) {
  RETURN_IF_ERROR(CheckNoneTwice(directory, places));
  for (const auto& [tensor, file] : index.file_of) {
    const auto found = places.find(tensor);
    if (found != places.end() && *found->second.begin() == file) continue;
    const std::string where = found == places.end() ? "and in no other" : "but in " + *found->second.begin();
    return IndexError("tensor_not_in_shard", directory,
                      fmt::format("tensor={} is not in file={} {}", tensor, file, where));
  }
  for (const auto& [tensor, files] : places) {
    if (index.file_of.contains(tensor)) continue;
    return IndexError("tensor_not_in_index", directory,
                      fmt::format("tensor={} is in file={} but not listed", tensor, *files.begin()));
  }
  return OkStatus();
}

// The index and the headers name the same tensors in the same files.
Status CheckIndex(const Directory& directory, const ShardIndex& index, const CheckpointFiles& files) {
  RETURN_IF_ERROR(CompareWithHeaders(directory, index, PlacesOf(files)));
  std::int64_t stored_bytes = 0;
  for (const auto& file : files) stored_bytes += file->header().data_bytes;
  if (index.total_bytes && *index.total_bytes != stored_bytes) {
    LogWarn("index_total_size", "directory={} index={} files={}", directory.path(), *index.total_bytes, stored_bytes);
  }
  return OkStatus();
}

TrailingBytes TrailingOf(const ReadOptions& read) {
  return read.lenient_trailing ? TrailingBytes::kPassedOver : TrailingBytes::kRefused;
}

Result<std::unique_ptr<SafetensorsFile>> OpenFileOf(const Directory& directory, const std::string& name,
                                                    const ReadOptions& read) {
  RETURN_IF_ERROR(CheckNotStopped(read));
  ASSIGN_OR_RETURN(OpenFile opened, directory.Open(name));
  ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(std::move(opened), directory.PathOf(name), TrailingOf(read)));
  RETURN_IF_ERROR(CheckInside(directory, *file));
  return file;
}

Result<CheckpointFiles> OpenFiles(const Directory& directory, const std::set<std::string>& names,
                                  const ReadOptions& read) {
  CheckpointFiles files;
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(auto file, OpenFileOf(directory, name, read));
    files.push_back(std::move(file));
  }
  return files;
}

Result<CheckpointFiles> OpenSharded(const Directory& directory, const ReadOptions& read) {
  ASSIGN_OR_RETURN(const ShardIndex index, ReadIndex(directory));
  std::set<std::string> names;
  for (const auto& [tensor, file] : index.file_of) names.insert(file);
  if (directory.Has(kSingleName) && !names.contains(kSingleName)) {
    return IndexError("ambiguous_files", directory,
                      fmt::format("{} is there too, but not listed: which of the two is meant?", kSingleName));
  }
  RETURN_IF_ERROR(CheckFilesExist(directory, index));
  ASSIGN_OR_RETURN(CheckpointFiles files, OpenFiles(directory, names, read));
  RETURN_IF_ERROR(CheckIndex(directory, index, files));
  return files;
}

// What is missing then, the engine's layout tells.
Result<CheckpointFiles> OpenWithoutIndex(const Directory& directory, const std::vector<std::string>& names,
                                         const ReadOptions& read) {
  LogWarn("index_ignored", "directory={} files={}", directory.path(), names.size());
  ASSIGN_OR_RETURN(CheckpointFiles files, OpenFiles(directory, {names.begin(), names.end()}, read));
  RETURN_IF_ERROR(CheckNoneTwice(directory, PlacesOf(files)));
  return files;
}

Status NoSafetensors(const Directory& directory) {
  const std::vector<std::string> pickles = NamesIn(directory, {".bin", ".pt", ".pth", ".ckpt"});
  const std::string hint =
      pickles.empty() ? "" : fmt::format("; {} is not read: a pickle can run code when it is loaded", pickles[0]);
  return Status::NotFound("no_safetensors", fmt::format("{}: no .safetensors file{}", directory.path(), hint));
}

}  // namespace

Result<CheckpointFiles> OpenCheckpointFiles(const Directory& directory, const ReadOptions& read) {
  if (directory.Has(kIndexName) && !read.ignore_index) return OpenSharded(directory, read);
  std::vector<std::string> names = NamesIn(directory, {".safetensors"});
  if (directory.Has(kIndexName) && !names.empty()) return OpenWithoutIndex(directory, names, read);
  if (std::find(names.begin(), names.end(), kSingleName) != names.end()) names = {kSingleName};
  if (names.empty()) return NoSafetensors(directory);
  if (names.size() > 1) {
    return IndexError(
        "ambiguous_files", directory,
        fmt::format("no such file, and there are {} .safetensors files: {}", names.size(), fmt::join(names, ", ")));
  }
  return OpenFiles(directory, {names[0]}, read);
}

Result<CheckpointFiles> OpenCheckpointFile(const std::string& path, const ReadOptions& read) {
  CheckpointFiles files;
  ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path, TrailingOf(read)));
  files.push_back(std::move(file));
  return files;
}

}  // namespace bascule
