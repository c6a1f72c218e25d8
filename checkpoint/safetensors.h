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

inline constexpr std::int64_t kHeaderBytesMax = 100'000'000;  // as in the reference implementation

struct StoredTensor {
  TensorSpec spec;
  std::int64_t data_begin = 0;  // in the file's data region
  std::int64_t data_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // sorted by name
  std::map<std::string, std::string> metadata;
  std::int64_t data_offset = 0;  // of the data region in the file
  std::int64_t data_bytes = 0;
  std::int64_t trailing_bytes = 0;  // behind the data region; 0 unless they are passed over
};

enum class TrailingBytes : std::uint8_t { kRefused, kPassedOver };

// Where the header of a file ends, its length field included: so much of the file ParseSafetensorsHeader needs, never
// more than the file has. `head` is the first 512 bytes of the file, or all of a shorter one.
//
// DataLoss "file_truncated" (got and wanted bytes) | "header_length" | "header_json" | "not_safetensors" (what the file
//          is instead: a git-lfs pointer, HTML, zip, pickle, gzip, GGUF, ...)
Result<std::int64_t> SafetensorsHeaderEnd(std::span<const std::byte> head, std::int64_t file_bytes);

// Reference rules: sorted by offset the tensors' ranges lie one behind the other from 0 and fill the data region, each
// as long as its shape and dtype say. Stricter: a key that comes twice is refused, as are unknown fields, more than
// kMaxDims dimensions, and names that CheckTensors refuses. Messages name the tensor.
//
// `head` is the file's beginning, at least SafetensorsHeaderEnd bytes of it; `file_bytes` its whole size.
//
// DataLoss  as SafetensorsHeaderEnd
//   of the JSON    "header_json" | "duplicate_key" | "bad_name" | "bad_entry" (a field missing, unknown or of the wrong
//                  type) | "bad_metadata" | "unknown_dtype" | "unsupported_dtype" (of the format, but not read:
//                  elements below a byte, F8_E8M0, C64) | "shape_overflow"
//   of the ranges  "bad_offsets" (end before they begin) | "size_mismatch" | "ranges_overlap" | "range_gap"
//                  | "trailing_bytes" | "file_truncated"
Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> head, std::int64_t file_bytes,
                                                 TrailingBytes trailing = TrailingBytes::kRefused);

struct OpenFile;

// A file opened for reading. Its header is read and checked; its data have addresses in a mapping, at which they can be
// read as long as the file keeps its size and its device works: ReadBoxes reads without that risk. Messages name the
// path.
class SafetensorsFile {
 public:
  // NotFound "file_not_found"; PermissionDenied "file_not_readable" (also what is no regular file)
  // ResourceExhausted "map_failed"; Unavailable "read_failed"; DataLoss as above
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::string& path,
                                                       TrailingBytes trailing = TrailingBytes::kRefused);
  // The same of what is open already; `path` is for messages.
  static Result<std::unique_ptr<SafetensorsFile>> Open(OpenFile&& opened, const std::string& path,
                                                       TrailingBytes trailing = TrailingBytes::kRefused);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const SafetensorsHeader& header() const { return header_; }
  const std::string& path() const { return path_; }
  // Links followed.
  const std::string& real_path() const { return real_path_; }
  std::span<const std::byte> Data(const StoredTensor& tensor) const;
  // All of it; only addresses, which cannot be read, where can_map() is false (a file system that maps no files).
  std::span<const std::byte> mapping() const { return {mapping_, mapping_bytes_}; }
  bool can_map() const { return can_map_; }
  const OpenFile& opened() const { return *opened_; }
  // Lets go of the pages of `memory`, a part of some open file's data; they are read again when they are touched again.
  static void Release(std::span<const std::byte> memory);

 private:
  SafetensorsFile();
  Status Map();
  std::unique_ptr<const OpenFile> opened_;
  std::string path_;
  std::string real_path_;
  SafetensorsHeader header_;
  const std::byte* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  bool can_map_ = true;
};

// Writes to a temporary name beside `path`, fsyncs, renames: mappings of an older file at `path` stay valid. `tensors`
// and `data` correspond. The data region begins at a multiple of 64, larger elements first.
//
// InvalidArgument "bad_tensors"  names (the reserved __metadata__, twice, not UTF-8), sizes that do not correspond
// NotFound "directory_not_found"; PermissionDenied "file_not_writable"; ResourceExhausted "disk_full";
// Unavailable "write_failed"
Status WriteSafetensors(const std::string& path, const std::vector<TensorSpec>& tensors,
                        const std::vector<std::span<const std::byte>>& data,
                        const std::map<std::string, std::string>& metadata);

}  // namespace bascule
