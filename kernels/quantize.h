// bf16 <-> FP8 (E4M3) with one fp32 scale for each block of 128 x 128 elements, as DeepSeek-V3 publishes its weights
// (weight, weight_scale_inv; arXiv:2412.19437, section 3.3). Blocks at the right and lower edge are cut by the matrix:
// 320 x 256 elements have 3 x 2 scales.
//
//   scale_inv = max(amax / 448, 2^-116)      amax: largest magnitude of the block; 448: largest E4M3 number
//   code(x)   = E4M3(x / scale_inv)          the fp32 quotient, rounded to nearest even, saturating at 448
//   x'(code)  = code * scale_inv             the fp32 product, as bf16 by kernels/cast.h
//
// A block of zeros has scale_inv 2^-116 and dequantises to zeros. The floor is where denormals would begin: above it a
// denormal element is below half the smallest code, and no product is denormal. So all results are the same under any
// flush mode, and the same for every instruction set. |x' - x| is at most half a step of E4M3 at x, which is 2^-4 |x|
// or 2^-10 scale_inv, and the roundings of the quotient, the product and bf16.
//
// Thread-safety: thread-safe (pure functions). Matrices are dense and row-major, need no alignment and do not overlap.
// Rows may be done in parts, on as many threads, where each part but the last is a multiple of 128 rows.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace bascule {

inline constexpr std::int64_t kFp8Block = 128;
inline constexpr float kF8E4M3Max = 448.0f;
inline constexpr float kScaleInvMin = 0x1p-116f;

constexpr std::int64_t Fp8Blocks(std::int64_t elements) { return (elements + kFp8Block - 1) / kFp8Block; }

// The E4M3 code of `value`: to nearest even; beyond 448, infinities too, 448 with its sign; NaN: 0x7f with its sign.
constexpr std::uint8_t F8E4M3OfF32(float value) {
  constexpr float kLowBitsHoldSubnormal = 0x1p14f;  // whose last place is 2^-9, as that of E4M3's subnormals
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - ((127u - 7u) << 3);
  const float shifted = std::bit_cast<float>(magnitude) + kLowBitsHoldSubnormal;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(shifted) & 0x7fffffu;
  const std::uint32_t finite = magnitude < 0x3c800000u ? subnormal : std::min(normal, 0x7eu);
  return static_cast<std::uint8_t>((magnitude > 0x7f800000u ? 0x7fu : finite) | (bits >> 24 & 0x80u));
}

constexpr float F32OfF8E4M3(std::uint8_t code) {
  const std::uint32_t sign = std::uint32_t{code & 0x80u} << 24;
  const std::uint32_t low = code & 0x7fu;
  const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(low) * 0x1p-9f);
  const std::uint32_t normal = low == 0x7fu ? 0x7fc00000u : (low << 20) + ((127u - 7u) << 23);
  return std::bit_cast<float>(sign | (low < 8u ? subnormal : normal));
}

// `bf16` and `codes` are rows x columns elements, `scale_inv` Fp8Blocks(rows) x Fp8Blocks(columns) fp32.
//
// InvalidArgument "not_finite"  an infinity or NaN: the first one's row and column; what was written means nothing
Status QuantizeFp8BlocksOnHost(std::int64_t rows, std::int64_t columns, std::span<const std::byte> bf16,
                               std::span<std::byte> codes, std::span<std::byte> scale_inv);

// The way back. A NaN code gives a NaN.
void DequantizeFp8BlocksOnHost(std::int64_t rows, std::int64_t columns, std::span<const std::byte> codes,
                               std::span<const std::byte> scale_inv, std::span<std::byte> bf16);

}  // namespace bascule

// Roofline, per element: 2 bytes read and 1 written to quantise, 1 read and 2 written to dequantise; a block of 32 KiB
// is read twice, the second time from cache. One division: 16 in 10 to 16 cycles of AVX-512.
