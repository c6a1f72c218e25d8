// Checks the sizes of a model before they size anything.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "model/model_config.h"

namespace bascule {

inline constexpr std::int64_t kLayersMax = 10000;

// Afterwards every sum and product of two sizes fits, and the number of tensors is one that fits in memory.
//
// InvalidArgument "bad_config"  names the size
Status CheckSizes(const ModelConfig& config);

}  // namespace bascule
