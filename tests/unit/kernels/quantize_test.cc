#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cast.h"
#include "kernels/quantize_internal.h"

namespace bascule {
namespace {

using quantize_internal::Variant;

std::vector<const Variant*> AvailableVariants() {
  std::vector<const Variant*> variants;
  for (const Variant& variant : quantize_internal::Variants()) {
    if (variant.available()) variants.push_back(&variant);
  }
  return variants;
}

float Bf16Value(std::uint16_t bf16) { return std::bit_cast<float>(F32BitsOfBf16Bits(bf16)); }
std::uint16_t Bf16Of(float value) { return Bf16BitsOfF32Bits(std::bit_cast<std::uint32_t>(value)); }

struct Quantised {
  Status status;
  std::vector<std::uint8_t> codes;
  std::vector<float> scale_inv;
};

Quantised Quantise(const Variant& variant, std::int64_t rows, std::int64_t columns,
                   const std::vector<std::uint16_t>& bf16) {
  Quantised result;
  result.codes.resize(bf16.size());
  result.scale_inv.resize(static_cast<std::size_t>(Fp8Blocks(rows) * Fp8Blocks(columns)));
  result.status = quantize_internal::Quantize(variant, rows, columns, std::as_bytes(std::span(bf16)),
                                              std::as_writable_bytes(std::span(result.codes)),
                                              std::as_writable_bytes(std::span(result.scale_inv)));
  return result;
}

std::vector<std::uint16_t> Dequantise(const Variant& variant, std::int64_t rows, std::int64_t columns,
                                      const Quantised& quantised) {
  std::vector<std::uint16_t> bf16(quantised.codes.size());
  quantize_internal::Dequantize(variant, rows, columns, std::as_bytes(std::span(quantised.codes)),
                                std::as_bytes(std::span(quantised.scale_inv)), std::as_writable_bytes(std::span(bf16)));
  return bf16;
}

std::vector<std::uint16_t> RandomMatrix(std::int64_t rows, std::int64_t columns, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<std::uint16_t> bf16(static_cast<std::size_t>(rows * columns));
  for (std::uint16_t& element : bf16) element = Bf16Of(normal(random));
  return bf16;
}

// The value of a code, from the format's definition: 4 exponent bits with bias 7, 3 mantissa bits.
double SlowValueOfCode(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

bool IsNanCode(int code) { return (code & 0x7f) == 0x7f; }

// To nearest even by distances to all codes.
int SlowCodeOf(float value) {
  int best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const double closer =
        std::fabs(std::fabs(value) - SlowValueOfCode(best)) - std::fabs(std::fabs(value) - SlowValueOfCode(code));
    if (closer > 0 || (closer == 0 && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(value) ? 0x80 : 0);
}

// C-089.
TEST(QuantizeTest, All256CodesHaveTheValueThatTheFormatDefinesAndComeBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = F32OfF8E4M3(static_cast<std::uint8_t>(code));

    if (IsNanCode(code)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, SlowValueOfCode(code)) << code;
      EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
    }
    EXPECT_EQ(F8E4M3OfF32(value), code);
  }
  EXPECT_EQ(F32OfF8E4M3(0x7e), 448.0f);
  EXPECT_EQ(F32OfF8E4M3(0x77), 240.0f);
}

TEST(QuantizeTest, EveryBf16RoundsToTheNearestCodeWithTiesToEvenAndSaturates) {
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const float value = Bf16Value(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      ASSERT_EQ(F8E4M3OfF32(value), (bits >> 8 & 0x80) | 0x7f);
    } else if (std::fabs(value) > 448.0f) {
      ASSERT_EQ(F8E4M3OfF32(value), (bits >> 8 & 0x80) | 0x7e);
    } else {
      ASSERT_EQ(F8E4M3OfF32(value), SlowCodeOf(value)) << value;
    }
  }
}

TEST(QuantizeTest, ValuesBesideEveryMidpointOfTwoCodesRoundToTheNearer) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto middle = static_cast<float>((SlowValueOfCode(code) + SlowValueOfCode(code + 1)) / 2);

    EXPECT_EQ(F8E4M3OfF32(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(F8E4M3OfF32(middle), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(F8E4M3OfF32(std::nextafter(middle, INFINITY)), code + 1);
    EXPECT_EQ(F8E4M3OfF32(-middle), 0x80 | (code % 2 == 0 ? code : code + 1));
  }
}

// C-085.
TEST(QuantizeTest, AMatrixOf320By256HasThreeByTwoScalesAndTheErrorStaysWithinHalfAStep) {
  std::vector<std::uint16_t> bf16 = RandomMatrix(320, 256, 11);
  for (std::int64_t row = 0; row < 128; ++row) {  // block (0, 0): zeros; block (0, 1): magnitudes up to 1e-12
    for (std::int64_t column = 0; column < 256; ++column) {
      std::uint16_t& element = bf16[static_cast<std::size_t>(row * 256 + column)];
      element = column < 128 ? std::uint16_t{0} : Bf16Of(Bf16Value(element) * 1e-11f);
    }
  }
  for (const Variant* variant : AvailableVariants()) {
    SCOPED_TRACE(variant->name);

    const Quantised quantised = Quantise(*variant, 320, 256, bf16);
    const std::vector<std::uint16_t> back = Dequantise(*variant, 320, 256, quantised);

    ASSERT_TRUE(quantised.status.ok()) << quantised.status.ToString();
    ASSERT_EQ(quantised.scale_inv.size(), 6U);
    EXPECT_EQ(quantised.scale_inv[0], kScaleInvMin);
    for (std::size_t i = 0; i < bf16.size(); ++i) {
      const double x = Bf16Value(bf16[i]);
      const double scale = quantised.scale_inv[i / 256 / 128 * 2 + i % 256 / 128];
      // Half a step, and a bf16 rounding of what comes back.
      const double allowed = std::max(std::fabs(x) / 16, scale * 0x1p-10) + std::fabs(x) / 256 + scale * 0x1p-20;
      ASSERT_LE(std::fabs(Bf16Value(back[i]) - x), allowed) << i;
      ASSERT_TRUE(x != 0 || Bf16Value(back[i]) == 0.0f) << i;
    }
  }
}

TEST(QuantizeTest, TheScaleOfABlockIsItsLargestMagnitudeOver448WhereverThatLies) {
  for (const std::size_t place : {std::size_t{0}, std::size_t{127}, std::size_t{5 * 130 + 128}, std::size_t{129 * 130},
                                  std::size_t{130 * 130 - 1}}) {
    std::vector<std::uint16_t> bf16(130 * 130, Bf16Of(0.5f));
    bf16[place] = Bf16Of(-7.0f);
    for (const Variant* variant : AvailableVariants()) {
      const Quantised quantised = Quantise(*variant, 130, 130, bf16);

      const std::size_t block = (place / 130 / 128) * 2 + place % 130 / 128;
      for (std::size_t b = 0; b < 4; ++b) {
        EXPECT_EQ(quantised.scale_inv.at(b), (b == block ? 7.0f : 0.5f) / 448.0f) << variant->name << place;
      }
      EXPECT_EQ(quantised.codes[place], 0xfe);
    }
  }
}

TEST(QuantizeTest, AnInfinityOrANanIsRefusedWithItsRowAndColumn) {
  for (const int bad : {0x7f80, 0xff80, 0x7f81, 0xffff}) {
    std::vector<std::uint16_t> bf16(200 * 150, Bf16Of(1.0f));
    bf16[140 * 150 + 149] = static_cast<std::uint16_t>(bad);
    for (const Variant* variant : AvailableVariants()) {
      const Status status = Quantise(*variant, 200, 150, bf16).status;

      EXPECT_EQ(status.reason(), "not_finite");
      EXPECT_NE(status.message().find("row=140 column=149"), std::string::npos) << status.ToString();
    }
  }
}

TEST(QuantizeTest, TheLargestBf16AndDenormalsQuantiseWithoutOverflowOrLoss) {
  const std::vector<std::uint16_t> largest = {0x7f7f, 0xff7f, 0x0001, 0x0000};
  const std::vector<std::uint16_t> denormal = {0x0001, 0x8001, 0x007f, 0x0000};
  for (const Variant* variant : AvailableVariants()) {
    const Quantised big = Quantise(*variant, 2, 2, largest);
    const Quantised small = Quantise(*variant, 2, 2, denormal);

    EXPECT_EQ(big.codes, (std::vector<std::uint8_t>{0x7e, 0xfe, 0x00, 0x00}));
    EXPECT_EQ(Dequantise(*variant, 2, 2, big), (std::vector<std::uint16_t>{0x7f7f, 0xff7f, 0, 0}));
    EXPECT_EQ(small.scale_inv, (std::vector<float>{kScaleInvMin}));
    EXPECT_EQ(small.codes, (std::vector<std::uint8_t>{0x00, 0x80, 0x00, 0x00}));
  }
}

TEST(QuantizeTest, EveryVariantGivesTheBitsOfTheBaselineAtAnyWidthAlsoForRowsDoneInParts) {
  for (const std::int64_t columns : {1, 2, 15, 16, 17, 63, 127, 128, 129, 255, 300}) {
    const std::int64_t rows = 131;
    const std::vector<std::uint16_t> bf16 = RandomMatrix(rows, columns, static_cast<unsigned>(columns));
    const Quantised expected = Quantise(quantize_internal::Variants()[0], rows, columns, bf16);
    ASSERT_TRUE(expected.status.ok());
    const std::vector<std::uint16_t> expected_back =
        Dequantise(quantize_internal::Variants()[0], rows, columns, expected);
    for (const Variant* variant : AvailableVariants()) {
      SCOPED_TRACE(variant->name);

      const Quantised whole = Quantise(*variant, rows, columns, bf16);
      const auto cut = bf16.begin() + 128 * columns;
      const Quantised above = Quantise(*variant, 128, columns, {bf16.begin(), cut});
      const Quantised below = Quantise(*variant, rows - 128, columns, {cut, bf16.end()});

      Quantised parts = above;
      parts.codes.insert(parts.codes.end(), below.codes.begin(), below.codes.end());
      parts.scale_inv.insert(parts.scale_inv.end(), below.scale_inv.begin(), below.scale_inv.end());
      for (const Quantised& got : {whole, parts}) {
        EXPECT_EQ(got.codes, expected.codes);
        EXPECT_EQ(got.scale_inv, expected.scale_inv);
      }
      EXPECT_EQ(Dequantise(*variant, rows, columns, expected), expected_back);
    }
  }
}

TEST(QuantizeTest, AnEmptyMatrixHasNoScales) {
  EXPECT_TRUE(QuantizeFp8BlocksOnHost(0, 256, {}, {}, {}).ok());
  EXPECT_TRUE(QuantizeFp8BlocksOnHost(256, 0, {}, {}, {}).ok());
}

}  // namespace
}  // namespace bascule
