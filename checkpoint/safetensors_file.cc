#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "checkpoint/file_internal.h"
#include "checkpoint/safetensors.h"

namespace bascule {

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const OpenFile opened, OpenRegularFile(path));
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  if (opened.bytes > 0) {
    const auto bytes = static_cast<std::size_t>(opened.bytes);
    void* mapping = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, opened.fd.get(), 0);
    if (mapping == MAP_FAILED) {
      return Status::ResourceExhausted("map_failed",
                                       fmt::format("{}: {} bytes: {}", path, bytes, std::strerror(errno)));
    }
    file->mapping_ = static_cast<const std::byte*>(mapping);
    file->mapping_bytes_ = bytes;
  }
  Result<SafetensorsHeader> header = ParseSafetensorsHeader({file->mapping_, file->mapping_bytes_}, opened.bytes);
  if (!header.ok()) return header.status().WithContext(path);
  file->header_ = std::move(header).value();
  return file;
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
