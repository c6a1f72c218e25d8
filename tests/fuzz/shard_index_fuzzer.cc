// model.safetensors.index.json from anywhere: whatever is accepted names files of its own directory only.
#include <algorithm>
#include <cstdint>

#include "base/status.h"
#include "checkpoint/shard_index_internal.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto index = bascule::ParseShardIndex({reinterpret_cast<const char*>(data), size});
  if (!index.ok()) return 0;
  CHECK(!index->total_bytes || *index->total_bytes >= 0);
  for (const auto& [tensor, file] : index->file_of) {
    CHECK(!file.empty() && file != "." && file != "..");
    CHECK(std::none_of(file.begin(), file.end(), [](char c) { return c == '/' || c == '\0'; }));
  }
  return 0;
}
