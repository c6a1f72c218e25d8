#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "checkpoint/byte_file_internal.h"
#include "checkpoint/guarded_copy_internal.h"
#include "checkpoint/safetensors.h"

namespace bascule {
namespace {

// What O_DIRECT asks of offsets, lengths and addresses on every device we know of.
constexpr std::int64_t kDirectAlignment = 4096;

class OpenedFile : public ByteFile {
 public:
  OpenedFile(const OpenFile& file, std::string path) : file_(file), path_(std::move(path)) {}
  const std::string& path() const override { return path_; }
  std::int64_t bytes() const override { return file_.bytes; }

  std::int64_t ReadSome(std::int64_t offset, std::span<std::byte> target) const override {
    return ReadFrom(fd(), offset, target);
  }

  Status CheckUnchanged() const override {
    struct stat facts {};
    if (fstat(fd(), &facts) != 0) return OkStatus();
    if (facts.st_size != file_.bytes) {
      return Status::DataLoss("file_changed",
                              fmt::format("{}: {} bytes, {} when it was opened", path_, facts.st_size, file_.bytes));
    }
    if (WriteTimeOf(facts) == file_.written_ns) return OkStatus();
    return Status::DataLoss("file_changed", path_ + ": written to while it was read");
  }

  void Announce(std::int64_t offset, std::int64_t length) const override {
    posix_fadvise(fd(), offset, length, POSIX_FADV_WILLNEED);
  }
  void Forget(std::int64_t offset, std::int64_t length) const override {
    posix_fadvise(fd(), offset, length, POSIX_FADV_DONTNEED);
  }

 protected:
  int fd() const { return file_.fd.get(); }
  static std::int64_t ReadFrom(int fd, std::int64_t offset, std::span<std::byte> target) {
    const ssize_t got = pread(fd, target.data(), target.size(), offset);
    return got < 0 ? -errno : got;
  }

 private:
  const OpenFile& file_;
  const std::string path_;
};

class Mapped final : public OpenedFile {
 public:
  Mapped(const OpenFile& file, std::string path, const std::byte* mapping)
      : OpenedFile(file, std::move(path)), mapping_(mapping) {}

  std::int64_t ReadSome(std::int64_t offset, std::span<std::byte> target) const override {
    if (offset >= bytes()) return 0;
    const std::span<std::byte> wanted =
        target.first(std::min(target.size(), static_cast<std::size_t>(bytes() - offset)));
    const bool whole = GuardedCopy(mapping_ + offset, wanted);
    // What is copied need not stay in this process.
    SafetensorsFile::Release({mapping_ + offset, wanted.size()});
    if (whole) return static_cast<std::int64_t>(wanted.size());
    // What is wrong, and from where on, a read of the same range can say.
    return OpenedFile::ReadSome(offset, wanted);
  }

 private:
  const std::byte* mapping_;
};

class Direct final : public OpenedFile {
 public:
  Direct(const OpenFile& file, std::string path, UniqueFd direct)
      : OpenedFile(file, std::move(path)), direct_(std::move(direct)) {}
  std::int64_t alignment() const override { return kDirectAlignment; }

  std::int64_t ReadSome(std::int64_t offset, std::span<std::byte> target) const override {
    // A count that is short in the middle of a block: the rest of the block goes through the page cache.
    const bool aligned = offset % kDirectAlignment == 0 &&
                         reinterpret_cast<std::uintptr_t>(target.data()) % kDirectAlignment == 0 &&
                         std::ssize(target) % kDirectAlignment == 0;
    return ReadFrom(aligned ? direct_.get() : fd(), offset, target);
  }

 private:
  const UniqueFd direct_;
};

}  // namespace

std::unique_ptr<ByteFile> BufferedFile(const OpenFile& file, const std::string& path) {
  posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  return std::make_unique<OpenedFile>(file, path);
}

std::unique_ptr<ByteFile> MappedFile(const OpenFile& file, const std::string& path, const std::byte* mapping) {
  return std::make_unique<Mapped>(file, path, mapping);
}

Result<std::unique_ptr<ByteFile>> DirectFile(const OpenFile& file, const std::string& path) {
  // By way of the descriptor, so that it is the same file whatever its name means by now.
  UniqueFd direct(open(fmt::format("/proc/self/fd/{}", file.fd.get()).c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (direct.get() < 0) {
    return Status::FailedPrecondition("direct_unsupported",
                                      fmt::format("{}: no O_DIRECT: {}", path, std::strerror(errno)));
  }
  return std::unique_ptr<ByteFile>(std::make_unique<Direct>(file, path, std::move(direct)));
}

Status ReadRange(const ByteFile& file, std::int64_t offset, std::int64_t bytes, std::span<std::byte> target,
                 std::int64_t& calls) {
  std::int64_t done = 0;
  while (done < bytes) {
    const std::int64_t got = file.ReadSome(offset + done, target.subspan(static_cast<std::size_t>(done)));
    ++calls;
    if (got == -EINTR) continue;
    if (got < 0) {
      return Status::Unavailable("read_failed", fmt::format("{}: offset={}: {}", file.path(), offset + done,
                                                            std::strerror(static_cast<int>(-got))));
    }
    if (got == 0) {
      return Status::DataLoss("file_truncated", fmt::format("{}: ends at offset={}, {} bytes when it was opened",
                                                            file.path(), offset + done, file.bytes()));
    }
    done += got;
  }
  return OkStatus();
}

}  // namespace bascule
