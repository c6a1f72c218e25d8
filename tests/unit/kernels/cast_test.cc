#include "kernels/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cast_internal.h"

namespace bascule {
namespace {

std::vector<std::uint16_t> ToBf16(const std::vector<std::uint32_t>& f32) {
  std::vector<std::uint16_t> bf16(f32.size());
  CastF32ToBf16OnHost(std::as_bytes(std::span(f32)), std::as_writable_bytes(std::span(bf16)));
  return bf16;
}

std::vector<std::uint32_t> ToF32(const std::vector<std::uint16_t>& bf16) {
  std::vector<std::uint32_t> f32(bf16.size());
  CastBf16ToF32OnHost(std::as_bytes(std::span(bf16)), std::as_writable_bytes(std::span(f32)));
  return f32;
}

std::uint32_t BitsOf(float value) { return std::bit_cast<std::uint32_t>(value); }
float Bf16Value(std::uint16_t bf16) { return std::bit_cast<float>(std::uint32_t{bf16} << 16); }

// Round to nearest even without any bit trick of the kernel: the two bf16 neighbours of the value, their exact
// distances in double, and an even last place when they tie. Beyond the largest bf16 the upper neighbour counts as
// 2^128, as IEEE 754 has it.
std::uint16_t SlowBf16OfFinite(float value) {
  const double magnitude = std::fabs(static_cast<double>(value));
  std::uint16_t below = 0;
  for (int bit = 14; bit >= 0; --bit) {
    const auto candidate = static_cast<std::uint16_t>(below | (1 << bit));
    if (candidate < 0x7f80 && static_cast<double>(Bf16Value(candidate)) <= magnitude) below = candidate;
  }
  const auto above = static_cast<std::uint16_t>(below + 1);
  const double above_value = above == 0x7f80 ? std::ldexp(1.0, 128) : static_cast<double>(Bf16Value(above));
  const double to_below = magnitude - static_cast<double>(Bf16Value(below));
  const double to_above = above_value - magnitude;
  const bool up = to_above < to_below || (to_above == to_below && below % 2 == 1);
  return static_cast<std::uint16_t>((up ? above : below) | (std::signbit(value) ? 0x8000 : 0));
}

TEST(CastTest, EveryBf16SurvivesTheWayToF32AndBackExceptThatNansBecomeQuiet) {
  std::vector<std::uint16_t> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);

  const std::vector<std::uint32_t> wide = ToF32(all);
  const std::vector<std::uint16_t> back = ToBf16(wide);

  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(wide[i], std::uint32_t{all[i]} << 16);
    const bool nan = std::isnan(Bf16Value(all[i]));
    ASSERT_EQ(back[i], nan ? all[i] | 0x40 : all[i]) << i;
  }
}

// C-074.
TEST(CastTest, SpecialValuesRoundAsTheCasesDemand) {
  const std::vector<std::uint32_t> from = {BitsOf(1.00390625f), BitsOf(1.01171875f), BitsOf(3.4e38f),   BitsOf(1e-40f),
                                           BitsOf(-0.0f),       BitsOf(INFINITY),    BitsOf(-INFINITY), 0x7f800001u,
                                           0xff80ffffu,         BitsOf(65504.0f),    0x7fffffffu,       0x00000001u};

  const std::vector<std::uint16_t> to = ToBf16(from);

  EXPECT_EQ(Bf16Value(to[0]), 1.0f);
  EXPECT_EQ(Bf16Value(to[1]), 1.015625f);
  EXPECT_EQ(Bf16Value(to[2]), INFINITY);
  EXPECT_EQ(to[3], 0x0001u);  // denormals are kept: 2^-133 is the nearest to 1e-40
  EXPECT_EQ(to[4], 0x8000u);
  EXPECT_EQ(to[5], 0x7f80u);
  EXPECT_EQ(to[6], 0xff80u);
  EXPECT_EQ(to[7], 0x7fc0u);  // low payload bits only: quiet NaN, not infinity
  EXPECT_EQ(to[8], 0xffc0u);
  EXPECT_EQ(Bf16Value(to[9]), 65536.0f);
  EXPECT_EQ(to[10], 0x7fffu);
  EXPECT_EQ(to[11], 0x0000u);
}

TEST(CastTest, AMillionRandomPatternsRoundToTheNearerNeighbour) {
  std::mt19937 random(20240517);
  std::vector<std::uint32_t> from(1'000'000);
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<std::uint32_t>(random());
    if (i % 4 == 0) from[i] = (from[i] & 0xffff0000u) | 0x8000u;  // ties
    if (i % 4 == 1) from[i] = (from[i] & 0x807fffffu);            // denormals
  }

  const std::vector<std::uint16_t> to = ToBf16(from);

  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto value = std::bit_cast<float>(from[i]);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(Bf16Value(to[i]))) << std::hex << from[i];
      ASSERT_EQ(to[i], (from[i] >> 16) | 0x40u) << std::hex << from[i];
    } else if (std::isinf(value)) {
      ASSERT_EQ(to[i], from[i] >> 16);
    } else {
      ASSERT_EQ(to[i], SlowBf16OfFinite(value)) << std::hex << from[i];
    }
  }
}

constexpr std::byte kUntouched{0xa5};
constexpr std::size_t kGuard = 32;

template <typename T>
T At(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

void ExpectUntouchedAround(std::span<const std::byte> bytes, std::size_t begin, std::size_t size) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i >= begin && i < begin + size) continue;
    ASSERT_EQ(bytes[i], kUntouched) << i;
  }
}

TEST(CastTest, EveryVariantThisProcessorHasEqualsTheScalarFormulaAtAnyLengthAndAlignment) {
  std::mt19937 random(7);
  std::vector<std::byte> memory(4 * 200 + 3);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  for (const cast_internal::Variant& variant : cast_internal::Variants()) {
    if (!variant.available()) continue;
    SCOPED_TRACE(variant.name);
    for (std::size_t count = 0; count <= 100; ++count) {
      for (std::size_t shift = 0; shift < 4; ++shift) {
        const std::byte* from = memory.data() + shift;
        std::vector<std::byte> narrow(2 * count + kGuard, kUntouched);
        std::vector<std::byte> wide(4 * count + kGuard, kUntouched);

        variant.f32_to_bf16(from, narrow.data() + 1, count);
        variant.bf16_to_f32(from, wide.data() + 1, count);

        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(At<std::uint16_t>(narrow, 1 + 2 * i), Bf16BitsOfF32Bits(At<std::uint32_t>(memory, shift + 4 * i)));
          ASSERT_EQ(At<std::uint32_t>(wide, 1 + 4 * i), F32BitsOfBf16Bits(At<std::uint16_t>(memory, shift + 2 * i)));
        }
        ExpectUntouchedAround(narrow, 1, 2 * count);
        ExpectUntouchedAround(wide, 1, 4 * count);
      }
    }
  }
}

}  // namespace
}  // namespace bascule
