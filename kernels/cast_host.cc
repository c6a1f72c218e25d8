#include "kernels/cast.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"
#include "kernels/cast_internal.h"

namespace bascule {
namespace cast_internal {
namespace {

// Inlined into a function for each instruction set, where the compiler turns it into that set's vectors.
template <typename From, typename To, To (*kConvert)(From)>
[[gnu::always_inline]] inline void CastLoop(const std::byte* __restrict from, std::byte* __restrict to,
                                            std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    From element;
    std::memcpy(&element, from + i * sizeof(From), sizeof(From));
    const To converted = kConvert(element);
    std::memcpy(to + i * sizeof(To), &converted, sizeof(To));
  }
}

void ToBf16(const std::byte* from, std::byte* to, std::size_t count) {
  CastLoop<std::uint32_t, std::uint16_t, Bf16BitsOfF32Bits>(from, to, count);
}
void ToF32(const std::byte* from, std::byte* to, std::size_t count) {
  CastLoop<std::uint16_t, std::uint32_t, F32BitsOfBf16Bits>(from, to, count);
}
constexpr Variant kBaseline = {"baseline", [] { return true; }, ToBf16, ToF32};

#if defined(__x86_64__)
[[gnu::target("avx2")]] void ToBf16Avx2(const std::byte* from, std::byte* to, std::size_t count) {
  CastLoop<std::uint32_t, std::uint16_t, Bf16BitsOfF32Bits>(from, to, count);
}
[[gnu::target("avx2")]] void ToF32Avx2(const std::byte* from, std::byte* to, std::size_t count) {
  CastLoop<std::uint16_t, std::uint32_t, F32BitsOfBf16Bits>(from, to, count);
}
[[gnu::target("avx512bw,avx512vl")]] void ToBf16Avx512(const std::byte* from, std::byte* to, std::size_t count) {
  CastLoop<std::uint32_t, std::uint16_t, Bf16BitsOfF32Bits>(from, to, count);
}
[[gnu::target("avx512bw,avx512vl")]] void ToF32Avx512(const std::byte* from, std::byte* to, std::size_t count) {
  CastLoop<std::uint16_t, std::uint32_t, F32BitsOfBf16Bits>(from, to, count);
}
constexpr Variant kAvx2 = {"avx2", [] { return __builtin_cpu_supports("avx2") != 0; }, ToBf16Avx2, ToF32Avx2};
constexpr Variant kAvx512 = {
    "avx512", [] { return __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0; },
    ToBf16Avx512, ToF32Avx512};
constexpr Variant kVariants[] = {kBaseline, kAvx2, kAvx512};
#else
constexpr Variant kVariants[] = {kBaseline};
#endif

}  // namespace

std::span<const Variant> Variants() { return kVariants; }

const Variant& FastestVariant() {
  static const Variant& fastest = *std::find_if(std::rbegin(kVariants), std::rend(kVariants),
                                                [](const Variant& variant) { return variant.available(); });
  return fastest;
}

}  // namespace cast_internal

void CastF32ToBf16OnHost(std::span<const std::byte> from, std::span<std::byte> to) {
  CHECK(from.size() % 4 == 0 && to.size() == from.size() / 2);
  cast_internal::FastestVariant().f32_to_bf16(from.data(), to.data(), from.size() / 4);
}

void CastBf16ToF32OnHost(std::span<const std::byte> from, std::span<std::byte> to) {
  CHECK(from.size() % 2 == 0 && to.size() == from.size() * 2);
  cast_internal::FastestVariant().bf16_to_f32(from.data(), to.data(), from.size() / 2);
}

}  // namespace bascule
