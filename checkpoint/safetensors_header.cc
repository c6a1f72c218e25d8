#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "checkpoint/header_reader_internal.h"
#include "checkpoint/safetensors.h"

namespace bascule {
namespace {

constexpr std::int64_t kLengthBytes = 8;

// What a file that is not safetensors is; empty when it gives no sign.
std::string_view KindOfOther(std::span<const std::byte> head) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), std::min<std::size_t>(head.size(), 512));
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (text.starts_with("version https://git-lfs")) return "a git-lfs pointer: the real file was not downloaded";
  if (first != std::string_view::npos && text[first] == '<') return "an HTML or XML page: the download failed";
  if (text.starts_with("PK\x03\x04")) return "a zip archive, as torch.save writes";
  if (text.starts_with("\x1f\x8b")) return "a gzip file";
  if (text.starts_with("\x80\x02") || text.starts_with("\x80\x04")) return "a Python pickle";
  if (text.starts_with("GGUF")) return "a GGUF file";
  const auto printable = [](char c) { return (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\r' || c == '\t'; };
  if (!text.empty() && std::all_of(text.begin(), text.end(), printable)) return "a text file";
  return "";
}

Status Truncated(std::int64_t file_bytes, std::int64_t wanted_bytes, std::string_view what) {
  return Status::DataLoss("file_truncated", fmt::format("got={} bytes, want={} for {}: an unfinished download?",
                                                        file_bytes, wanted_bytes, what));
}

std::uint64_t LengthField(std::span<const std::byte> head) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(kLengthBytes); ++i) {
    length |= std::to_integer<std::uint64_t>(head[i]) << (8 * i);
  }
  return length;
}

// The length of the JSON, which lies wholly in the file and begins as an object. The first bytes of another kind of
// file can pass for a length, so what the file is instead is asked before a rule that it breaks is named.
Result<std::int64_t> CheckedHeaderBytes(std::span<const std::byte> head, std::int64_t file_bytes) {
  const std::string_view other = KindOfOther(head);
  const auto broken = [&](Status status) {
    return other.empty() ? status : Status::DataLoss("not_safetensors", std::string(other));
  };
  if (file_bytes < kLengthBytes) return broken(Truncated(file_bytes, kLengthBytes, "the header length"));
  CHECK(head.size() >= static_cast<std::size_t>(kLengthBytes));
  const std::uint64_t length = LengthField(head);
  if (length > static_cast<std::uint64_t>(kHeaderBytesMax)) {
    return broken(Status::DataLoss("header_length", fmt::format("got={} most={}", length, kHeaderBytesMax)));
  }
  const auto header_bytes = static_cast<std::int64_t>(length);
  const std::span<const std::byte> json = head.subspan(static_cast<std::size_t>(kLengthBytes));
  if (header_bytes == 0 || (!json.empty() && json[0] != std::byte{'{'})) {
    return broken(Status::DataLoss("header_json", "the header does not begin with '{'"));
  }
  if (header_bytes > file_bytes - kLengthBytes) return Truncated(file_bytes, kLengthBytes + header_bytes, "the header");
  CHECK(header_bytes <= static_cast<std::int64_t>(json.size()));
  return header_bytes;
}

Status BadRange(const StoredTensor& tensor, std::string_view what) {
  return Status::DataLoss("bad_offsets", fmt::format("tensor={} data_offsets=[{}, {}] {}", tensor.spec.name,
                                                     tensor.data_begin, tensor.data_begin + tensor.data_bytes, what));
}

// Sorted by offset the ranges lie one behind the other and fill the data region.
Status CheckRanges(std::vector<StoredTensor>& tensors, std::int64_t data_bytes, std::int64_t file_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.data_begin, a.data_bytes, a.spec.name) < std::tie(b.data_begin, b.data_bytes, b.spec.name);
  });
  std::int64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.data_bytes < 0) return BadRange(tensor, "end before they begin");
    if (tensor.data_bytes != tensor.spec.Bytes()) {
      return BadRange(tensor,
                      fmt::format("hold {} bytes, but {} of shape {} takes {}", tensor.data_bytes,
                                  DTypeName(tensor.spec.dtype), tensor.spec.shape.ToString(), tensor.spec.Bytes()));
    }
    if (tensor.data_begin < end) return BadRange(tensor, fmt::format("overlap what ends at {}", end));
    if (tensor.data_begin > end) return BadRange(tensor, fmt::format("leave a gap behind {}", end));
    end = tensor.data_begin + tensor.data_bytes;
  }
  if (end > data_bytes) return Truncated(file_bytes, file_bytes - data_bytes + end, "the tensors");
  if (end < data_bytes) {
    return Status::DataLoss("bad_offsets", fmt::format("{} bytes behind the last tensor", data_bytes - end));
  }
  return OkStatus();
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> head, std::int64_t file_bytes) {
  ASSIGN_OR_RETURN(const std::int64_t header_bytes, CheckedHeaderBytes(head, file_bytes));
  ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeaderJson(head.subspan(static_cast<std::size_t>(kLengthBytes),
                                                                         static_cast<std::size_t>(header_bytes))));
  header.data_offset = kLengthBytes + header_bytes;
  header.data_bytes = file_bytes - header.data_offset;
  RETURN_IF_ERROR(CheckRanges(header.tensors, header.data_bytes, file_bytes));
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.spec.name < b.spec.name; });
  return header;
}

}  // namespace bascule
