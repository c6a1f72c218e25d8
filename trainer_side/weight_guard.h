// A look at the weights themselves before they are sent anywhere: a training step that went wrong leaves NaNs,
// infinities or numbers far out of range.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include "base/status.h"
#include "bridge/send/weight_source.h"

namespace bascule {

struct WeightGuard {
  double max_magnitude = 0;  // of any weight; 0: finite is enough
};

// Reads every BF16, F16 and F32 element that `source` holds and maps, once. Other types are not looked at.
//
// DataLoss "weights_not_finite" | "weights_too_large"  names the tensor
// what BoxReader::Next says
Status CheckWeights(const WeightSource& source, const WeightGuard& guard);

}  // namespace bascule
