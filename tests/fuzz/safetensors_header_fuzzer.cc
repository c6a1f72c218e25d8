// The header of a safetensors file from anywhere. The input is taken twice: as a file, and as the JSON of one whose
// length is right, so that mutations of the JSON get past the length.
#include <cstdint>
#include <string>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace bascule {
namespace {

// What every accepted header promises, whatever was read.
void CheckPromises(const SafetensorsHeader& header, std::int64_t file_bytes) {
  CHECK(header.data_offset >= 8 && header.data_offset + header.data_bytes == file_bytes);
  std::int64_t covered = 0;
  for (std::size_t t = 0; t < header.tensors.size(); ++t) {
    const StoredTensor& tensor = header.tensors[t];
    CHECK(tensor.data_begin >= 0 && tensor.data_bytes >= 0 && tensor.data_bytes == tensor.spec.Bytes());
    CHECK(tensor.data_begin + tensor.data_bytes <= header.data_bytes);
    CHECK(t == 0 || header.tensors[t - 1].spec.name < tensor.spec.name);
    covered += tensor.data_bytes;
  }
  CHECK(covered == header.data_bytes);
}

void Parse(std::span<const std::byte> head, std::int64_t file_bytes) {
  const Result<std::int64_t> end = SafetensorsHeaderEnd(head, file_bytes);
  if (!end.ok()) return;
  CHECK(*end <= file_bytes);
  const Result<SafetensorsHeader> header = ParseSafetensorsHeader(head, file_bytes);
  if (header.ok()) CheckPromises(*header, file_bytes);
}

}  // namespace
}  // namespace bascule

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  bascule::Parse(bytes, static_cast<std::int64_t>(size));
  if (size < 2) return 0;
  const std::size_t data_bytes = static_cast<std::size_t>(data[0]) + (static_cast<std::size_t>(data[1]) << 8);
  std::string head(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) head[i] = static_cast<char>((size - 2) >> (8 * i) & 0xff);
  head.append(reinterpret_cast<const char*>(data) + 2, size - 2);
  bascule::Parse(std::as_bytes(std::span(head)), static_cast<std::int64_t>(head.size() + data_bytes));
  return 0;
}
