#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "checkpoint/file_internal.h"
#include "checkpoint/foreign_file_internal.h"
#include "checkpoint/safetensors.h"

namespace bascule {

namespace {

// Read rather than mapped: a file that is cut meanwhile is an error here, not a signal.
Result<SafetensorsHeader> ReadHeader(const OpenFile& file, const std::string& path, TrailingBytes trailing) {
  const auto first = std::min(file.bytes, static_cast<std::int64_t>(kForeignHeadBytes));
  std::vector<std::byte> head(static_cast<std::size_t>(first));
  RETURN_IF_ERROR(ReadAt(file.fd.get(), path, 0, head));
  const Result<std::int64_t> end = SafetensorsHeaderEnd(head, file.bytes);
  if (!end.ok()) return end.status().WithContext(path);
  if (*end > first) {
    head.resize(static_cast<std::size_t>(*end));
    RETURN_IF_ERROR(ReadAt(file.fd.get(), path, first, std::span(head).subspan(static_cast<std::size_t>(first))));
  }
  Result<SafetensorsHeader> header = ParseSafetensorsHeader(head, file.bytes, trailing);
  if (!header.ok()) return header.status().WithContext(path);
  if (header->trailing_bytes > 0) LogWarn("trailing_bytes", "file={} bytes={}", path, header->trailing_bytes);
  return header;
}

}  // namespace

SafetensorsFile::SafetensorsFile() = default;

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path, TrailingBytes trailing) {
  ASSIGN_OR_RETURN(OpenFile opened, OpenRegularFile(path));
  return Open(std::move(opened), path, trailing);
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(OpenFile&& opened, const std::string& path,
                                                               TrailingBytes trailing) {
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  ASSIGN_OR_RETURN(file->real_path_, RealPathOf(opened.fd));
  ASSIGN_OR_RETURN(file->header_, ReadHeader(opened, path, trailing));
  file->opened_ = std::make_unique<OpenFile>(std::move(opened));
  RETURN_IF_ERROR(file->Map());
  return file;
}

Status SafetensorsFile::Map() {
  const auto bytes = static_cast<std::size_t>(opened_->bytes);
  void* mapping = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, opened_->fd.get(), 0);
  if (mapping == MAP_FAILED && errno == ENODEV) {
    can_map_ = false;
    mapping = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (mapping == MAP_FAILED) {
    return Status::ResourceExhausted("map_failed", fmt::format("{}: {} bytes: {}", path_, bytes, std::strerror(errno)));
  }
  mapping_ = static_cast<const std::byte*>(mapping);
  mapping_bytes_ = bytes;
  return OkStatus();
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) munmap(const_cast<std::byte*>(mapping_), mapping_bytes_);
}

std::span<const std::byte> SafetensorsFile::Data(const StoredTensor& tensor) const {
  const std::span<const std::byte> file(mapping_, mapping_bytes_);
  return file.subspan(static_cast<std::size_t>(header_.data_offset + tensor.data_begin),
                      static_cast<std::size_t>(tensor.data_bytes));
}

void SafetensorsFile::Release(std::span<const std::byte> memory) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t last = (begin + memory.size()) / page * page;
  // The mapping is private and never written, so that its pages hold nothing but the file's own bytes.
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace bascule
