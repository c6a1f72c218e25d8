// fp32 <-> bf16, the only two conversions a sender makes.
//
// To bf16: round to nearest, ties to even. A NaN keeps its sign and upper bits and becomes quiet (a NaN whose payload
// lies in the low bits only must not turn into an infinity). Denormals are kept, whatever the processor's flush mode:
// all arithmetic is on integers. To fp32: exact.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bascule {

// The bits of a bf16 from the bits of an fp32.
constexpr std::uint16_t Bf16BitsOfF32Bits(std::uint32_t f32) {
  if ((f32 & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((f32 >> 16) | 0x40u);
  return static_cast<std::uint16_t>((f32 + 0x7fffu + ((f32 >> 16) & 1u)) >> 16);
}

constexpr std::uint32_t F32BitsOfBf16Bits(std::uint16_t bf16) { return std::uint32_t{bf16} << 16; }

// Element by element, in the machine's byte order. `to` has room for exactly the elements of `from` and does not
// overlap it; neither needs an alignment.
void CastF32ToBf16OnHost(std::span<const std::byte> from, std::span<std::byte> to);
void CastBf16ToF32OnHost(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace bascule

// Roofline, per element: 4 bytes read and 2 written (to bf16), 2 read and 4 written (to fp32).
