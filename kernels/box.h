// An n-d box of elements and where it lies: the one description that pack, unpack, fill and digest share. A *shape*
// says what is iterated, in row-major order; a *place* says where element 0 lies in some linear memory and how far
// apart neighbours are. One shape with two places is a copy.
//
// Units: elements, 64-bit (one embedding can pass 2^31 bytes). Sizes are checked by whoever makes them (bridge/layout).
#pragma once

#include <array>
#include <cstdint>

namespace bascule {

inline constexpr int kMaxDims = 8;

struct BoxShape {
  int dims = 0;  // 0: a single element
  std::array<std::int64_t, kMaxDims> count{};
  std::int64_t Elements() const {
    std::int64_t product = 1;
    for (int d = 0; d < dims; ++d) product *= count[static_cast<std::size_t>(d)];
    return product;
  }
};

struct BoxPlace {
  std::int64_t offset = 0;                      // of the box's first element
  std::array<std::int64_t, kMaxDims> stride{};  // per dimension of the shape
};

}  // namespace bascule

// Roofline: none; a description touches no element.
