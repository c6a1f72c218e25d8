// Where a safetensors file that is still to be written will have what: for writers that fill it block by block.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"

namespace bascule {

struct PlannedSafetensors {
  std::string header;                 // from the file's first byte to its data region
  std::vector<std::int64_t> offsets;  // in the file, of each tensor
  std::vector<std::size_t> order;     // of the tensors in the file
  std::int64_t file_bytes = 0;
};

// The data region begins at a multiple of 64, larger elements first.
//
// InvalidArgument "bad_tensors"  as WriteSafetensors
Result<PlannedSafetensors> PlanSafetensors(const std::vector<TensorSpec>& tensors,
                                           const std::map<std::string, std::string>& metadata);

}  // namespace bascule
