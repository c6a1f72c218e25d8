// Weights as numeric kernels read them: dense row-major elements in memory that the caller keeps.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <cstddef>
#include <cstdint>

namespace bascule {

enum class WeightType { kBf16, kF32 };

struct WeightView {
  const std::byte* data = nullptr;
  WeightType type = WeightType::kBf16;
  std::int64_t item_bytes() const { return type == WeightType::kBf16 ? 2 : 4; }
  // The view from element `index` on.
  WeightView From(std::int64_t index) const { return {data + index * item_bytes(), type}; }
};

// Widens `count` elements from element `first` on: exact.
void WidenOnHost(WeightView weights, std::int64_t first, std::int64_t count, float* out);

}  // namespace bascule
