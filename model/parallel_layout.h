// How the engine ranks of one replica share a model.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <string>

#include "base/status.h"

namespace bascule {

struct ParallelLayout {
  int tensor = 1;                // ranks that share every layer: column-parallel rows, row-parallel columns
  int pipeline = 1;              // stages: ranges of layers, one behind the other
  bool expert_parallel = false;  // the tensor-parallel ranks hold whole experts each, not a slice of every expert

  // Rank = pipeline stage * tensor + tensor-parallel rank.
  int ranks() const { return tensor * pipeline; }
  std::string ToString() const;  // "tensor=4 pipeline=1 expert_parallel=false"
  friend bool operator==(const ParallelLayout&, const ParallelLayout&) = default;
};

// InvalidArgument "bad_parallel_layout"  a size that is not 1 to 1024
Status CheckParallelLayout(const ParallelLayout& parallel);

}  // namespace bascule
