#include "base/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/unique_fd.h"

namespace bascule {
namespace {

constexpr mode_t kByOthers = S_IRWXG | S_IRWXO;
constexpr mode_t kPassedByOthers = S_IXGRP | S_IXOTH;

// A file is as private as the most private directory on the way to it.
bool OthersReach(const std::string& path) {
  std::error_code error;
  std::filesystem::path directory = std::filesystem::canonical(path, error).parent_path();
  if (error) return true;
  for (; !directory.empty(); directory = directory.parent_path()) {
    struct stat found {};
    if (stat(directory.c_str(), &found) == 0 && (found.st_mode & kPassedByOthers) == 0) return false;
    if (directory == directory.root_path()) break;
  }
  return true;
}

Result<std::string> ReadAll(const std::string& path, int fd, std::size_t bytes) {
  std::string text(bytes, '\0');
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t more = read(fd, text.data() + got, bytes - got);
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return Status::InvalidArgument("bad_file", fmt::format("{}: {}", path, std::strerror(errno)));
    if (more == 0) break;
    got += static_cast<std::size_t>(more);
  }
  text.resize(got);
  return text;
}

Result<std::string> ReadFile(const std::string& path, std::size_t max_bytes, bool is_private) {
  // Never waits for the writer of a FIFO.
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found {};
  if (!file.valid() || fstat(file.get(), &found) != 0) {
    return Status::NotFound("no_such_file", fmt::format("{}: {}", path, std::strerror(errno)));
  }
  if (!S_ISREG(found.st_mode) || std::cmp_greater(found.st_size, max_bytes)) {
    return Status::InvalidArgument("bad_file",
                                   fmt::format("{}: want a regular file of at most {} bytes", path, max_bytes));
  }
  if (is_private && (found.st_mode & kByOthers) != 0 && OthersReach(path)) {
    return Status::PermissionDenied(
        "loose_permissions",
        fmt::format("{}: mode {:o} lets other users at a secret; chmod 600 it", path, found.st_mode & 0777));
  }
  return ReadAll(path, file.get(), static_cast<std::size_t>(found.st_size));
}

}  // namespace

Result<std::string> ReadPrivateFile(const std::string& path, std::size_t max_bytes) {
  return ReadFile(path, max_bytes, /*is_private=*/true);
}

Result<std::string> ReadSmallFile(const std::string& path, std::size_t max_bytes) {
  return ReadFile(path, max_bytes, /*is_private=*/false);
}

}  // namespace bascule
