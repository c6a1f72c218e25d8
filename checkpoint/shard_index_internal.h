// model.safetensors.index.json: which file of a sharded checkpoint has which tensor.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace bascule {

struct ShardIndex {
  std::map<std::string, std::string> file_of;  // by tensor; plain file names, none of them a path
  std::optional<std::int64_t> total_bytes;     // metadata.total_size, where it is a whole number
};

// DataLoss "bad_index"          not JSON, no weight_map, a value that is not a file name
//          "duplicate_key"      a key twice
//          "outside_directory"  a file name that is a path, or absolute, or ".."
Result<ShardIndex> ParseShardIndex(std::string_view text);

}  // namespace bascule
