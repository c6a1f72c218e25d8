#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/log.h"
#include "checkpoint/output_directory_internal.h"

namespace bascule {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStagingSuffix = ".partial";

Status OutputExists(const std::string& path) {
  return Status::AlreadyExists("output_exists", fmt::format("{}: is there already; choose another name", path));
}

std::string WithoutTrailingSlash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

fs::path ParentOf(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent;
}

// What the temporary names of `path` begin with.
std::string StagingPrefix(const std::string& path) { return fmt::format(".{}.", fs::path(path).filename().string()); }

UniqueFd OpenDirectory(const std::string& path) {
  return UniqueFd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// A directory that its writer has not locked has no writer any more.
void RemoveAbandoned(const std::string& path) {
  const std::string prefix = StagingPrefix(path);
  std::error_code error;
  for (fs::directory_iterator entry(ParentOf(path), error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(kStagingSuffix)) continue;
    const UniqueFd directory = OpenDirectory(entry->path().string());
    if (directory.get() < 0 || flock(directory.get(), LOCK_EX | LOCK_NB) != 0) continue;
    LogInfo("abandoned_output_removed", "path={}", entry->path().string());
    std::error_code ignored;
    fs::remove_all(entry->path(), ignored);
  }
}

// True while the name still stands for what is open: nobody took it for abandoned before it was locked.
bool IsStillThere(const std::string& path, const UniqueFd& directory) {
  struct stat named {};
  struct stat opened {};
  return stat(path.c_str(), &named) == 0 && fstat(directory.get(), &opened) == 0 && named.st_ino == opened.st_ino;
}

}  // namespace

Result<std::unique_ptr<OutputDirectory>> OutputDirectory::Create(const std::string& raw_path) {
  const std::string path = WithoutTrailingSlash(raw_path);
  std::error_code error;
  if (fs::exists(fs::symlink_status(path, error)) && !(fs::is_directory(path, error) && fs::is_empty(path, error))) {
    return OutputExists(path);
  }
  RemoveAbandoned(path);
  static std::atomic<unsigned> counter = 0;
  for (;;) {
    const std::string staging =
        (ParentOf(path) / fmt::format("{}{}-{}{}", StagingPrefix(path), getpid(), counter++, kStagingSuffix)).string();
    if (mkdir(staging.c_str(), 0777) != 0) {
      if (errno == EEXIST) continue;
      return WriteFailure(ParentOf(path).string(), errno);
    }
    UniqueFd directory = OpenDirectory(staging);
    if (directory.get() < 0 || flock(directory.get(), LOCK_EX | LOCK_NB) != 0 || !IsStillThere(staging, directory)) {
      continue;
    }
    return std::unique_ptr<OutputDirectory>(new OutputDirectory(path, staging, std::move(directory)));
  }
}

OutputDirectory::~OutputDirectory() {
  if (committed_) return;
  std::error_code ignored;
  fs::remove_all(staging_, ignored);
}

Result<UniqueFd> OutputDirectory::CreateFile(const std::string& name) const {
  UniqueFd fd(openat(directory_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (fd.get() < 0) return WriteFailure(PathOf(name), errno);
  return fd;
}

Status OutputDirectory::WriteFile(const std::string& name, std::string_view content) const {
  ASSIGN_OR_RETURN(const UniqueFd fd, CreateFile(name));
  RETURN_IF_ERROR(WriteAt(fd, PathOf(name), 0, std::as_bytes(std::span(content))));
  return FlushFile(fd, PathOf(name));
}

Status OutputDirectory::Commit() {
  RETURN_IF_ERROR(FlushFile(directory_, staging_));
  if (rename(staging_.c_str(), path_.c_str()) != 0) {
    const bool exists = errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR;
    return exists ? OutputExists(path_) : WriteFailure(path_, errno);
  }
  committed_ = true;
  const std::string parent = ParentOf(path_).string();
  const UniqueFd directory = OpenDirectory(parent);
  if (directory.get() < 0) return WriteFailure(parent, errno);
  return FlushFile(directory, parent);
}

}  // namespace bascule
