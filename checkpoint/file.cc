#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "checkpoint/file_internal.h"

namespace bascule {
namespace {

constexpr std::size_t kWriteBytesMax = std::size_t{1} << 30;  // The kernel takes at most 2 GiB at once.

Status ReadFailure(const std::string& path, int error) {
  const std::string message = fmt::format("{}: {}", path, std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return Status::NotFound("file_not_found", message);
  return Status::PermissionDenied("file_not_readable", message);
}

// 0, or the error number.
int WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), std::min(bytes.size(), kWriteBytesMax));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

int WriteAndFlush(int fd, const std::vector<std::span<const std::byte>>& pieces) {
  for (const std::span<const std::byte> piece : pieces) {
    if (const int error = WriteAll(fd, piece); error != 0) return error;
  }
  return fsync(fd) == 0 ? 0 : errno;
}

// Makes a rename in the directory of `path` last through a power cut.
int FlushDirectoryOf(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const UniqueFd fd(open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return errno;
  return fsync(fd.get()) == 0 ? 0 : errno;
}

std::string TemporaryNameFor(const std::string& path) {
  static std::atomic<unsigned> counter = 0;
  return fmt::format("{}.{}-{}.tmp", path, getpid(), counter++);
}

}  // namespace

Status WriteFailure(const std::string& path, int error) {
  const std::string message = fmt::format("{}: {}", path, std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return Status::NotFound("directory_not_found", message);
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
      return Status::PermissionDenied("file_not_writable", message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Status::ResourceExhausted("disk_full", message);
    default:
      return Status::Unavailable("write_failed", message);
  }
}

std::int64_t WriteTimeOf(const struct stat& facts) {
  return static_cast<std::int64_t>(facts.st_mtim.tv_sec) * 1'000'000'000 + facts.st_mtim.tv_nsec;
}

Result<OpenFile> OpenRegularFile(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (fd.get() < 0) return ReadFailure(path, errno);
  return RegularFileOf(std::move(fd), path);
}

Result<OpenFile> RegularFileOf(UniqueFd fd, const std::string& path) {
  struct stat facts {};
  if (fstat(fd.get(), &facts) != 0) return ReadFailure(path, errno);
  if (!S_ISREG(facts.st_mode)) return Status::PermissionDenied("file_not_readable", path + ": not a regular file");
  return OpenFile{std::move(fd), facts.st_size, WriteTimeOf(facts)};
}

Result<std::string> RealPathOf(const UniqueFd& fd) {
  std::error_code error;
  std::string path = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd.get()), error).string();
  if (error) return Status::PermissionDenied("file_not_readable", "no /proc: " + error.message());
  return path;
}

Status ReadAt(int fd, const std::string& path, std::int64_t offset, std::span<std::byte> target) {
  constexpr std::size_t kReadBytesMax = std::size_t{1} << 30;  // The kernel gives at most 2 GiB at once.
  const std::int64_t end = offset + static_cast<std::int64_t>(target.size());
  while (!target.empty()) {
    const ssize_t got = pread(fd, target.data(), std::min(target.size(), kReadBytesMax), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return Status::Unavailable("read_failed", fmt::format("{}: offset={}: {}", path, offset, std::strerror(errno)));
    }
    if (got == 0) {
      return Status::DataLoss("file_truncated",
                              fmt::format("{}: ends at {}, want={}: it was cut while open", path, offset, end));
    }
    offset += got;
    target = target.subspan(static_cast<std::size_t>(got));
  }
  return OkStatus();
}

Result<std::string> ReadTextFile(const std::string& path, std::int64_t bytes_max) {
  ASSIGN_OR_RETURN(const OpenFile file, OpenRegularFile(path));
  return ReadTextFile(file, path, bytes_max);
}

Result<std::string> ReadTextFile(const OpenFile& file, const std::string& path, std::int64_t bytes_max) {
  if (file.bytes > bytes_max) {
    return Status::DataLoss("file_too_large", fmt::format("{}: got={} most={}", path, file.bytes, bytes_max));
  }
  std::string text(static_cast<std::size_t>(file.bytes), '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = read(file.fd.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ReadFailure(path, errno);
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  text.resize(filled);
  return text;
}

Status WriteAt(const UniqueFd& fd, const std::string& path, std::int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd.get(), bytes.data(), std::min(bytes.size(), kWriteBytesMax), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return WriteFailure(path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += written;
  }
  return OkStatus();
}

Status FlushFile(const UniqueFd& fd, const std::string& path) {
  return fsync(fd.get()) == 0 ? OkStatus() : WriteFailure(path, errno);
}

Status ReplaceFile(const std::string& path, const std::vector<std::span<const std::byte>>& pieces) {
  const std::string temporary = TemporaryNameFor(path);
  const UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (fd.get() < 0) return WriteFailure(path, errno);
  int error = WriteAndFlush(fd.get(), pieces);
  if (error == 0 && rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    unlink(temporary.c_str());
    return WriteFailure(path, error);
  }
  error = FlushDirectoryOf(path);
  return error == 0 ? OkStatus() : WriteFailure(path, error);
}

}  // namespace bascule
