#include "kernels/cast.h"

#include <cstring>

#include "base/status.h"

namespace bascule {
namespace {

template <typename From, typename To, To (*kConvert)(From)>
void Cast(std::span<const std::byte> from, std::span<std::byte> to) {
  const std::size_t count = from.size() / sizeof(From);
  CHECK(from.size() == count * sizeof(From) && to.size() == count * sizeof(To));
  for (std::size_t i = 0; i < count; ++i) {
    From element;
    std::memcpy(&element, from.data() + i * sizeof(From), sizeof(From));
    const To converted = kConvert(element);
    std::memcpy(to.data() + i * sizeof(To), &converted, sizeof(To));
  }
}

}  // namespace

void CastF32ToBf16OnHost(std::span<const std::byte> from, std::span<std::byte> to) {
  Cast<std::uint32_t, std::uint16_t, Bf16BitsOfF32Bits>(from, to);
}

void CastBf16ToF32OnHost(std::span<const std::byte> from, std::span<std::byte> to) {
  Cast<std::uint16_t, std::uint32_t, F32BitsOfBf16Bits>(from, to);
}

}  // namespace bascule
