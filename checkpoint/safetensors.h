// safetensors files: 8-byte little-endian header length, JSON header, raw data. Read as hostile input: every number is
// checked before it sizes or indexes anything.
//
// Thread-safety: thread-compatible; a mapped file's bytes may be read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"

namespace bascule {

struct StoredTensor {
  TensorSpec spec;
  std::int64_t data_begin = 0;  // in the file's data region
  std::int64_t data_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // sorted by name
  std::map<std::string, std::string> metadata;
  std::int64_t data_offset = 0;       // of the data region in the file
  std::int64_t data_bytes = 0;
};

// `head` is the file's beginning, at least 8 + header length bytes of it; `file_bytes` its whole size.
//
// DataLoss  "file_truncated" | "header_length" | "header_json" | "duplicate_key" | "bad_entry" | "bad_offsets"
//           | "unknown_dtype" | "bad_metadata" | "not_safetensors" (a git-lfs pointer, HTML, zip, gzip: named as such)
Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> head, std::int64_t file_bytes);

// A file opened for reading through a read-only mapping. Messages name the path.
class SafetensorsFile {
 public:
  // NotFound "file_not_found"; PermissionDenied "file_not_readable"; DataLoss as above
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const SafetensorsHeader& header() const { return header_; }
  const std::string& path() const { return path_; }
  std::span<const std::byte> Data(const StoredTensor& tensor) const;

 private:
  SafetensorsFile() = default;
  std::string path_;
  SafetensorsHeader header_;
  const std::byte* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
};

// Writes to a temporary name beside `path`, fsyncs, renames. `tensors` and `data` correspond.
Status WriteSafetensors(const std::string& path, const std::vector<TensorSpec>& tensors,
                        const std::vector<std::span<const std::byte>>& data,
                        const std::map<std::string, std::string>& metadata);

}  // namespace bascule
