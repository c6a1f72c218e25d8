#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/checked_math.h"
#include "checkpoint/file_internal.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer_internal.h"

namespace bascule {
namespace {

constexpr std::int64_t kDataAlignment = 64;

// A JSON string. Bytes that are not UTF-8 pass through: the check of the finished header refuses them.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string MetadataJson(const std::map<std::string, std::string>& metadata) {
  std::string json;
  for (const auto& [key, value] : metadata) {
    json += fmt::format("{}{}:{}", json.empty() ? "" : ",", Quoted(key), Quoted(value));
  }
  return fmt::format("\"__metadata__\":{{{}}}", json);
}

// The eight length bytes and the JSON, padded so that the data region begins aligned.
std::string HeaderOf(const std::vector<TensorSpec>& tensors, const std::vector<std::size_t>& order,
                     const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  if (!metadata.empty()) json += MetadataJson(metadata);
  std::int64_t offset = 0;
  for (const std::size_t i : order) {
    const TensorSpec& tensor = tensors[i];
    json += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        json.size() == 1 ? "" : ",", Quoted(tensor.name), DTypeName(tensor.dtype),
                        fmt::join(tensor.shape.begin(), tensor.shape.end(), ","), offset, offset + tensor.Bytes());
    offset += tensor.Bytes();
  }
  json += "}";
  constexpr std::size_t kLengthBytes = 8;
  const std::int64_t unpadded = static_cast<std::int64_t>(kLengthBytes + json.size());
  json.resize(static_cast<std::size_t>(RoundUp(unpadded, kDataAlignment)) - kLengthBytes, ' ');
  std::string header;
  for (std::size_t i = 0; i < kLengthBytes; ++i) header += static_cast<char>(json.size() >> (8 * i) & 0xff);
  return header + json;
}

Status BadTensors(std::string message) { return Status::InvalidArgument("bad_tensors", std::move(message)); }

Status CheckData(const std::vector<TensorSpec>& tensors, const std::vector<std::span<const std::byte>>& data) {
  if (tensors.size() != data.size()) return BadTensors(fmt::format("{} tensors, {} data", tensors.size(), data.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (data[i].size() == static_cast<std::size_t>(tensors[i].Bytes())) continue;
    return BadTensors(
        fmt::format("tensor={} got={} bytes, want={}", tensors[i].name, data[i].size(), tensors[i].Bytes()));
  }
  return OkStatus();
}

// Larger elements first, so that every tensor is aligned to its element.
std::vector<std::size_t> OrderOf(const std::vector<TensorSpec>& tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return ItemBytes(tensors[a].dtype) > ItemBytes(tensors[b].dtype);
  });
  return order;
}

}  // namespace

Result<PlannedSafetensors> PlanSafetensors(const std::vector<TensorSpec>& tensors,
                                           const std::map<std::string, std::string>& metadata) {
  if (const Status status = CheckTensors(tensors); !status.ok()) return BadTensors(status.message());
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name == "__metadata__") return BadTensors("the name __metadata__ is reserved");
  }
  PlannedSafetensors planned;
  planned.order = OrderOf(tensors);
  planned.header = HeaderOf(tensors, planned.order, metadata);
  planned.offsets.resize(tensors.size());
  planned.file_bytes = static_cast<std::int64_t>(planned.header.size());
  for (const std::size_t i : planned.order) {
    planned.offsets[i] = planned.file_bytes;
    planned.file_bytes += tensors[i].Bytes();
  }
  // Nothing is written that the reader would refuse.
  const Result<SafetensorsHeader> parsed =
      ParseSafetensorsHeader(std::as_bytes(std::span(planned.header)), planned.file_bytes);
  if (!parsed.ok()) return BadTensors(parsed.status().ToString());
  return planned;
}

Status WriteSafetensors(const std::string& path, const std::vector<TensorSpec>& tensors,
                        const std::vector<std::span<const std::byte>>& data,
                        const std::map<std::string, std::string>& metadata) {
  RETURN_IF_ERROR(CheckData(tensors, data));
  ASSIGN_OR_RETURN(const PlannedSafetensors planned, PlanSafetensors(tensors, metadata));
  std::vector<std::span<const std::byte>> pieces = {std::as_bytes(std::span(planned.header))};
  for (const std::size_t i : planned.order) pieces.push_back(data[i]);
  return ReplaceFile(path, pieces);
}

}  // namespace bascule
