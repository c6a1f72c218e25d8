#include "kernels/quantize.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cast.h"
#include "kernels/quantize_internal.h"

namespace bascule {
namespace quantize_internal {
namespace {

constexpr int kInfinity = 0x7f80;

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Inlined into a function for each instruction set, where the compiler turns it into that set's vectors.
[[gnu::always_inline]] inline std::uint16_t LargestLoop(const std::byte* bf16, std::size_t count,
                                                        std::uint16_t largest) {
  for (std::size_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<std::uint16_t>(Load<std::uint16_t>(bf16 + 2 * i) & 0x7fffu));
  }
  return largest;
}

[[gnu::always_inline]] inline void QuantizeLoop(const std::byte* __restrict bf16, std::size_t count, float scale_inv,
                                                std::byte* __restrict codes) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto x = std::bit_cast<float>(F32BitsOfBf16Bits(Load<std::uint16_t>(bf16 + 2 * i)));
    codes[i] = std::byte{F8E4M3OfF32(x / scale_inv)};
  }
}

[[gnu::always_inline]] inline void DequantizeLoop(const std::byte* __restrict codes, std::size_t count, float scale_inv,
                                                  std::byte* __restrict bf16) {
  for (std::size_t i = 0; i < count; ++i) {
    const float x = F32OfF8E4M3(std::to_integer<std::uint8_t>(codes[i])) * scale_inv;
    const std::uint16_t rounded = Bf16BitsOfF32Bits(std::bit_cast<std::uint32_t>(x));
    std::memcpy(bf16 + 2 * i, &rounded, sizeof(rounded));
  }
}

std::uint16_t Largest(const std::byte* bf16, std::size_t count, std::uint16_t so_far) {
  return LargestLoop(bf16, count, so_far);
}
void QuantizeRow(const std::byte* bf16, std::size_t count, float scale_inv, std::byte* codes) {
  QuantizeLoop(bf16, count, scale_inv, codes);
}
void DequantizeRow(const std::byte* codes, std::size_t count, float scale_inv, std::byte* bf16) {
  DequantizeLoop(codes, count, scale_inv, bf16);
}
constexpr Variant kBaseline = {"baseline", [] { return true; }, Largest, QuantizeRow, DequantizeRow};

#if defined(__x86_64__)
[[gnu::target("avx2")]] std::uint16_t LargestAvx2(const std::byte* bf16, std::size_t count, std::uint16_t so_far) {
  return LargestLoop(bf16, count, so_far);
}
[[gnu::target("avx2")]] void QuantizeAvx2(const std::byte* bf16, std::size_t count, float scale_inv, std::byte* codes) {
  QuantizeLoop(bf16, count, scale_inv, codes);
}
[[gnu::target("avx2")]] void DequantizeAvx2(const std::byte* codes, std::size_t count, float scale_inv,
                                            std::byte* bf16) {
  DequantizeLoop(codes, count, scale_inv, bf16);
}
[[gnu::target("avx512bw,avx512vl")]] std::uint16_t LargestAvx512(const std::byte* bf16, std::size_t count,
                                                                 std::uint16_t so_far) {
  return LargestLoop(bf16, count, so_far);
}
[[gnu::target("avx512bw,avx512vl")]] void QuantizeAvx512(const std::byte* bf16, std::size_t count, float scale_inv,
                                                         std::byte* codes) {
  QuantizeLoop(bf16, count, scale_inv, codes);
}
[[gnu::target("avx512bw,avx512vl")]] void DequantizeAvx512(const std::byte* codes, std::size_t count, float scale_inv,
                                                           std::byte* bf16) {
  DequantizeLoop(codes, count, scale_inv, bf16);
}
constexpr Variant kAvx2 = {"avx2", [] { return __builtin_cpu_supports("avx2") != 0; }, LargestAvx2, QuantizeAvx2,
                           DequantizeAvx2};
constexpr Variant kAvx512 = {
    "avx512", [] { return __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0; },
    LargestAvx512, QuantizeAvx512, DequantizeAvx512};
constexpr Variant kVariants[] = {kBaseline, kAvx2, kAvx512};
#else
constexpr Variant kVariants[] = {kBaseline};
#endif

// Rows of one row of blocks.
struct Band {
  std::int64_t first_row, rows, columns;
};

// Calls `piece(block, at, count)` for what each block has of each row, in the order of memory: `at` counts elements.
template <typename Piece>
void ForEachPiece(const Band& band, const Piece& piece) {
  for (std::int64_t row = band.first_row; row < band.first_row + band.rows; ++row) {
    for (std::int64_t column = 0; column < band.columns; column += kFp8Block) {
      piece(static_cast<std::size_t>(column / kFp8Block), row * band.columns + column,
            static_cast<std::size_t>(std::min(kFp8Block, band.columns - column)));
    }
  }
}

Status NotFinite(const std::byte* bf16, const Band& band) {
  for (std::int64_t i = band.first_row * band.columns; i < (band.first_row + band.rows) * band.columns; ++i) {
    const int magnitude = Load<std::uint16_t>(bf16 + 2 * i) & 0x7fff;
    if (magnitude < kInfinity) continue;
    return Status::InvalidArgument("not_finite",
                                   fmt::format("row={} column={} is {}", i / band.columns, i % band.columns,
                                               magnitude == kInfinity ? "infinite" : "NaN"));
  }
  return OkStatus();
}

// Of the blocks of one band.
std::int64_t ScaleBytes(std::int64_t columns) { return 4 * Fp8Blocks(columns); }

float ScaleInvOf(std::uint16_t largest) {
  return std::max(std::bit_cast<float>(F32BitsOfBf16Bits(largest)) / kF8E4M3Max, kScaleInvMin);
}

void CheckSizes(std::int64_t rows, std::int64_t columns, std::size_t bf16, std::size_t codes, std::size_t scale_inv) {
  CHECK(rows >= 0 && columns >= 0);
  CHECK(std::cmp_equal(codes, rows * columns) && bf16 == 2 * codes);
  CHECK(std::cmp_equal(scale_inv, 4 * Fp8Blocks(rows) * Fp8Blocks(columns)));
}

}  // namespace

std::span<const Variant> Variants() { return kVariants; }

const Variant& FastestVariant() {
  static const Variant& fastest = *std::find_if(std::rbegin(kVariants), std::rend(kVariants),
                                                [](const Variant& variant) { return variant.available(); });
  return fastest;
}

Status Quantize(const Variant& variant, std::int64_t rows, std::int64_t columns, std::span<const std::byte> bf16,
                std::span<std::byte> codes, std::span<std::byte> scale_inv) {
  CheckSizes(rows, columns, bf16.size(), codes.size(), scale_inv.size());
  std::vector<float> scales(static_cast<std::size_t>(Fp8Blocks(columns)));
  std::vector<std::uint16_t> largest(scales.size());
  for (std::int64_t row = 0; row < rows; row += kFp8Block) {
    const Band band{row, std::min(kFp8Block, rows - row), columns};
    std::ranges::fill(largest, std::uint16_t{0});
    ForEachPiece(band, [&](std::size_t block, std::int64_t at, std::size_t count) {
      largest[block] = variant.largest(bf16.data() + 2 * at, count, largest[block]);
    });
    if (std::ranges::any_of(largest, [](std::uint16_t bits) { return bits >= kInfinity; })) {
      return NotFinite(bf16.data(), band);
    }
    std::ranges::transform(largest, scales.begin(), ScaleInvOf);
    if (!scales.empty())
      std::memcpy(scale_inv.data() + row / kFp8Block * ScaleBytes(columns), scales.data(), scales.size() * 4);
    ForEachPiece(band, [&](std::size_t block, std::int64_t at, std::size_t count) {
      variant.quantize(bf16.data() + 2 * at, count, scales[block], codes.data() + at);
    });
  }
  return OkStatus();
}

void Dequantize(const Variant& variant, std::int64_t rows, std::int64_t columns, std::span<const std::byte> codes,
                std::span<const std::byte> scale_inv, std::span<std::byte> bf16) {
  CheckSizes(rows, columns, bf16.size(), codes.size(), scale_inv.size());
  for (std::int64_t row = 0; row < rows; row += kFp8Block) {
    const std::byte* scales = scale_inv.data() + row / kFp8Block * ScaleBytes(columns);
    ForEachPiece({row, std::min(kFp8Block, rows - row), columns},
                 [&](std::size_t block, std::int64_t at, std::size_t count) {
                   variant.dequantize(codes.data() + at, count, Load<float>(scales + 4 * block), bf16.data() + 2 * at);
                 });
  }
}

}  // namespace quantize_internal

Status QuantizeFp8BlocksOnHost(std::int64_t rows, std::int64_t columns, std::span<const std::byte> bf16,
                               std::span<std::byte> codes, std::span<std::byte> scale_inv) {
  return quantize_internal::Quantize(quantize_internal::FastestVariant(), rows, columns, bf16, codes, scale_inv);
}

void DequantizeFp8BlocksOnHost(std::int64_t rows, std::int64_t columns, std::span<const std::byte> codes,
                               std::span<const std::byte> scale_inv, std::span<std::byte> bf16) {
  quantize_internal::Dequantize(quantize_internal::FastestVariant(), rows, columns, codes, scale_inv, bf16);
}

}  // namespace bascule
