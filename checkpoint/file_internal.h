// Files as this folder needs them: opened without a chance to block, replaced as a whole or not at all.
//
// Thread-safety: thread-safe.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace bascule {

struct OpenFile {
  UniqueFd fd;
  std::int64_t bytes = 0;
  std::int64_t written_ns = 0;  // when its bytes were last written
};

std::int64_t WriteTimeOf(const struct stat& facts);

// Opens a regular file for reading; a FIFO or a device is refused, not waited for. Messages name the path.
//
// NotFound "file_not_found"; PermissionDenied "file_not_readable"
Result<OpenFile> OpenRegularFile(const std::string& path);
// The same of what is open already. Errors as above.
Result<OpenFile> RegularFileOf(UniqueFd fd, const std::string& path);

// Where the open file really lies, links followed: of what is open, whatever its name means by now.
Result<std::string> RealPathOf(const UniqueFd& fd);

// Fills `target` from `offset` on, however short the counts in which the kernel gives it. `path` is for messages, which
// name the offset too.
//
// DataLoss "file_truncated"     the file ends before
// Unavailable "read_failed"     the device or the network gives an error
Status ReadAt(int fd, const std::string& path, std::int64_t offset, std::span<std::byte> target);

// The whole of a small text file. DataLoss "file_too_large"; else as OpenRegularFile
Result<std::string> ReadTextFile(const std::string& path, std::int64_t bytes_max);
Result<std::string> ReadTextFile(const OpenFile& file, const std::string& path, std::int64_t bytes_max);

// Writes `pieces` one behind the other to a new file beside `path`, flushes it to disk and renames it: readers see the
// old file or the new one, and a mapping of the old one stays valid.
//
// NotFound "directory_not_found"; PermissionDenied "file_not_writable"; ResourceExhausted "disk_full";
// Unavailable "write_failed"
Status ReplaceFile(const std::string& path, const std::vector<std::span<const std::byte>>& pieces);

// Writes all of `bytes` at `offset`, however many calls that takes. Errors as ReplaceFile; messages name the path.
Status WriteAt(const UniqueFd& fd, const std::string& path, std::int64_t offset, std::span<const std::byte> bytes);
// To disk. Errors as ReplaceFile.
Status FlushFile(const UniqueFd& fd, const std::string& path);
// The error of a write to `path` that failed with `error_number`.
Status WriteFailure(const std::string& path, int error_number);

}  // namespace bascule
