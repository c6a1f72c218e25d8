// What a sender does to an element on its way: only senders convert, so the wire type is the engine's storage type.
#pragma once

#include <cstdint>

namespace bascule {

enum class Conversion : std::uint8_t {
  kNone,
  kF32ToBf16,  // round to nearest even, NaN kept quiet: kernels/cast.h
  kBf16ToF32,  // exact
};

}  // namespace bascule
