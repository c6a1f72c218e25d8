// The casts for each instruction set: one loop, compiled once for each.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace bascule::cast_internal {

struct Variant {
  std::string_view name;
  bool (*available)();
  void (*f32_to_bf16)(const std::byte* from, std::byte* to, std::size_t count);
  void (*bf16_to_f32)(const std::byte* from, std::byte* to, std::size_t count);
};

std::span<const Variant> Variants();  // the baseline's first, the fastest last
const Variant& FastestVariant();      // of those this processor has

}  // namespace bascule::cast_internal
