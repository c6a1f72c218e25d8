// One open file of a checkpoint, as a strategy reads it. The seam through which tests make files slow, short and
// broken.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "checkpoint/file_internal.h"

namespace bascule {

class ByteFile {
 public:
  virtual ~ByteFile() = default;
  virtual const std::string& path() const = 0;
  virtual std::int64_t bytes() const = 0;  // when it was opened
  // Offsets, lengths and addresses are multiples of it; 1: none is asked for.
  virtual std::int64_t alignment() const { return 1; }
  // As pread(2): a count, perhaps a short one; 0 at the end of the file; an error number, negated.
  virtual std::int64_t ReadSome(std::int64_t offset, std::span<std::byte> target) const = 0;
  // DataLoss "file_changed"  the file has another size or was written to since it was opened
  virtual Status CheckUnchanged() const { return OkStatus(); }
  // Advice: the range will be read soon.
  virtual void Announce(std::int64_t offset, std::int64_t length) const {
    static_cast<void>(offset);
    static_cast<void>(length);
  }
  // Advice: lets the page cache forget a range.
  virtual void Forget(std::int64_t offset, std::int64_t length) const {
    static_cast<void>(offset);
    static_cast<void>(length);
  }
};

// Of a file that is open already; `file` is borrowed. `mapping` is all of it, mapped.
std::unique_ptr<ByteFile> BufferedFile(const OpenFile& file, const std::string& path);
std::unique_ptr<ByteFile> MappedFile(const OpenFile& file, const std::string& path, const std::byte* mapping);
// FailedPrecondition "direct_unsupported"  the file system has no O_DIRECT
Result<std::unique_ptr<ByteFile>> DirectFile(const OpenFile& file, const std::string& path);

// Reads [offset, offset + bytes) into `target`, however short the counts; `calls` counts requests. `target` may be
// longer, up to the alignment, and holds what lies behind then.
//
// DataLoss "file_truncated"; Unavailable "read_failed": with file and offset
Status ReadRange(const ByteFile& file, std::int64_t offset, std::int64_t bytes, std::span<std::byte> target,
                 std::int64_t& calls);

}  // namespace bascule
