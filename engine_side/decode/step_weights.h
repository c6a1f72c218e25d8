// What one decode step reads: the tensors of one version on every engine rank, held as long as this lives. Behind an
// interface so that a decoder runs on leases and, in tests, on plain memory.
//
// Thread-safety: thread-compatible; the ranks of a step read it at once.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "bridge/manifest/manifest.h"

namespace bascule {

class StepWeights {
 public:
  virtual ~StepWeights() = default;
  virtual const WeightVersion& version() const = 0;
  // Dense row-major bytes of local tensor `tensor` of `engine_rank`.
  virtual std::span<const std::byte> Tensor(int engine_rank, int tensor) const = 0;
};

// Null while nothing is live.
using AcquireStepWeights = std::function<std::unique_ptr<StepWeights>()>;

}  // namespace bascule
