// Models for benchmarks: of a wanted size, with weights that look like weights.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "device/buffer.h"
#include "model/model_config.h"

namespace bascule {

// A Qwen3-style decoder of about `bytes` of bf16, a quarter of them its embedding, as small models have it. From 64 MB
// on its matrices have the sizes of a model of 0.6e9 parameters.
ModelConfig ModelOfAbout(std::int64_t bytes);

// Every tensor's elements one after another, random and of the size of trained weights: finite through any layer.
//
// ResourceExhausted "device_memory"
Result<std::unique_ptr<DeviceBuffer>> RandomBf16Weights(const std::vector<TensorSpec>& tensors);

}  // namespace bascule
