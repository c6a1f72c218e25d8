// The quantising loops for each instruction set: one row of a block, compiled once for each.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace bascule::quantize_internal {

struct Variant {
  std::string_view name;
  bool (*available)();
  // The largest of `so_far` and the magnitudes of `count` bf16, as bits without the sign: 0x7f80 and above are not
  // finite.
  std::uint16_t (*largest)(const std::byte* bf16, std::size_t count, std::uint16_t so_far);
  void (*quantize)(const std::byte* bf16, std::size_t count, float scale_inv, std::byte* codes);
  void (*dequantize)(const std::byte* codes, std::size_t count, float scale_inv, std::byte* bf16);
};

std::span<const Variant> Variants();  // the baseline's first, the fastest last
const Variant& FastestVariant();      // of those this processor has

Status Quantize(const Variant& variant, std::int64_t rows, std::int64_t columns, std::span<const std::byte> bf16,
                std::span<std::byte> codes, std::span<std::byte> scale_inv);
void Dequantize(const Variant& variant, std::int64_t rows, std::int64_t columns, std::span<const std::byte> codes,
                std::span<const std::byte> scale_inv, std::span<std::byte> bf16);

}  // namespace bascule::quantize_internal
