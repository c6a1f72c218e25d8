#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "checkpoint/foreign_file_internal.h"
#include "checkpoint/header_reader_internal.h"
#include "checkpoint/safetensors.h"

namespace bascule {
namespace {

constexpr std::int64_t kLengthBytes = 8;

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

Status BadRange(std::string_view reason, const StoredTensor& tensor, std::string_view what) {
  return Status::DataLoss(reason, fmt::format("tensor={} data_offsets=[{}, {}] {}", tensor.spec.name, tensor.data_begin,
                                              tensor.data_begin + tensor.data_bytes, what));
}

// A range that is as long as its dtype and shape say.
Status CheckLength(const StoredTensor& tensor) {
  if (tensor.data_bytes < 0) return BadRange("bad_offsets", tensor, "end before they begin");
  if (tensor.data_bytes == tensor.spec.Bytes()) return OkStatus();
  return BadRange("size_mismatch", tensor,
                  fmt::format("hold {} bytes, but {} of shape {} takes {}", tensor.data_bytes,
                              DTypeName(tensor.spec.dtype), tensor.spec.shape.ToString(), tensor.spec.Bytes()));
}

// `sorted` ranges, which end behind the data region: how much of the file is missing, and with which tensors.
Status CutData(const std::vector<StoredTensor>& sorted, std::int64_t data_bytes, std::int64_t file_bytes) {
  const auto is_cut = [&](const StoredTensor& tensor) { return tensor.data_begin + tensor.data_bytes > data_bytes; };
  const auto first = std::find_if(sorted.begin(), sorted.end(), is_cut);
  const std::int64_t end = sorted.back().data_begin + sorted.back().data_bytes;
  return Truncated(file_bytes, file_bytes - data_bytes + end,
                   fmt::format("the tensors, {} of {} cut off from tensor={} on", sorted.end() - first, sorted.size(),
                               first->spec.name));
}

// Sorted by offset the ranges lie one behind the other from 0 and end within the data region. Gives their end.
Result<std::int64_t> EndOfRanges(std::vector<StoredTensor>& tensors, std::int64_t data_bytes, std::int64_t file_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.data_begin, a.data_bytes, a.spec.name) < std::tie(b.data_begin, b.data_bytes, b.spec.name);
  });
  std::int64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    RETURN_IF_ERROR(CheckLength(tensor));
    if (tensor.data_begin < end) return BadRange("ranges_overlap", tensor, fmt::format("overlap what ends at {}", end));
    if (tensor.data_begin > end) return BadRange("range_gap", tensor, fmt::format("leave a gap behind {}", end));
    end = tensor.data_begin + tensor.data_bytes;
  }
  if (end > data_bytes) return CutData(tensors, data_bytes, file_bytes);
  return end;
}

Status HasTrailingBytes(const std::vector<StoredTensor>& sorted, std::int64_t bytes) {
  return Status::DataLoss("trailing_bytes", fmt::format("{} bytes behind the last tensor{}", bytes,
                                                        sorted.empty() ? "" : ", tensor=" + sorted.back().spec.name));
}

}  // namespace

// The first bytes of another kind of file can pass for a length, so what the file is instead is asked before a rule
// that it breaks is named.
Result<std::int64_t> SafetensorsHeaderEnd(std::span<const std::byte> head, std::int64_t file_bytes) {
  const auto broken = [&](Status status) {
    const std::string other = ForeignKind(head);
    return other.empty() ? status : Status::DataLoss("not_safetensors", other);
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
  return kLengthBytes + header_bytes;
}

Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> head, std::int64_t file_bytes,
                                                 TrailingBytes trailing) {
  ASSIGN_OR_RETURN(const std::int64_t header_end, SafetensorsHeaderEnd(head, file_bytes));
  CHECK(header_end <= static_cast<std::int64_t>(head.size()));
  ASSIGN_OR_RETURN(SafetensorsHeader header,
                   ReadHeaderJson(head.first(static_cast<std::size_t>(header_end)).subspan(kLengthBytes)));
  header.data_offset = header_end;
  ASSIGN_OR_RETURN(header.data_bytes, EndOfRanges(header.tensors, file_bytes - header_end, file_bytes));
  header.trailing_bytes = file_bytes - header_end - header.data_bytes;
  if (header.trailing_bytes > 0 && trailing == TrailingBytes::kRefused) {
    return HasTrailingBytes(header.tensors, header.trailing_bytes);
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.spec.name < b.spec.name; });
  return header;
}

}  // namespace bascule
