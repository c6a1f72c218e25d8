// What surrounds cuBLAS's product. The product itself: tests/unit/device_gemm.
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cast.h"
#include "kernels/gemm_device.h"
#include "tests/unit/device_kernels/random_floats.h"
#include "tests/unit/device_kernels/test_device.h"

namespace bascule {
namespace {

class GemmPiecesTest : public DeviceKernelTest {
 protected:
  // The pieces of each number.
  std::vector<std::vector<float>> Split(const std::vector<float>& x, int pieces) {
    const std::size_t count = x.size();
    const auto from = UploadItems<float>(x);
    const auto to = UploadItems<std::uint16_t>(std::vector<std::uint16_t>(count * static_cast<std::size_t>(pieces)));
    Run(kernels().split_into_bf16, reinterpret_cast<const float*>(from->data()), static_cast<std::int64_t>(count),
        pieces, reinterpret_cast<std::uint16_t*>(to->data()));
    const std::vector<std::uint16_t> bits = DownloadItems<std::uint16_t>(*to);
    std::vector<std::vector<float>> split(count);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      split[i % count].push_back(std::bit_cast<float>(F32BitsOfBf16Bits(bits[i])));
    }
    return split;
  }
  Random random_{29};
};

TEST_F(GemmPiecesTest, ThreePiecesAddUpToEveryNumberInRangeToTheBit) {
  std::vector<float> x = RandomFloats(random_, 3000);
  for (float magnitude = 0x1p-100f; magnitude < 0x1p126f; magnitude *= 3) {
    x.push_back(magnitude);
    x.push_back(-std::nextafter(magnitude, 0.0f));
  }
  x.push_back(0.0f);
  x.push_back(0x1.fffffep126f);

  const std::vector<std::vector<float>> split = Split(x, 3);

  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] != 0 && (std::abs(x[i]) < 0x1p-100f || std::abs(x[i]) >= 0x1p127f)) continue;
    ASSERT_EQ(double{split[i][0]} + double{split[i][1]} + double{split[i][2]}, double{x[i]}) << x[i];
  }
}

TEST_F(GemmPiecesTest, OnePieceIsTheNumberRoundedToNearestEven) {
  const std::vector<float> x = RandomFloats(random_, 1000);

  const std::vector<std::vector<float>> split = Split(x, 1);

  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::uint16_t bits = Bf16BitsOfF32Bits(std::bit_cast<std::uint32_t>(x[i]));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(split[i][0]), F32BitsOfBf16Bits(bits));
  }
}

TEST_F(GemmPiecesTest, PiecesAreAddedSmallestFirstIntoRowsOfTheirOwnStride) {
  constexpr std::int64_t kRows = 3, kOutputs = 300, kStride = 310;
  const std::vector<float> z = RandomFloats(random_, 3 * kRows * kOutputs);
  for (const bool accumulate : {false, true}) {
    std::vector<float> expected = RandomFloats(random_, kRows * kStride);
    const auto from = UploadItems<float>(z), to = UploadItems<float>(expected);
    for (std::int64_t i = 0; i < kRows * kOutputs; ++i) {
      const auto at = static_cast<std::size_t>(i), piece = static_cast<std::size_t>(kRows * kOutputs);
      const float sum = (z[at + 2 * piece] + z[at + piece]) + z[at];
      float& y = expected[static_cast<std::size_t>(i / kOutputs * kStride + i % kOutputs)];
      y = accumulate ? y + sum : sum;
    }

    Run(kernels().sum_pieces, reinterpret_cast<const float*>(from->data()), kRows, kOutputs,
        reinterpret_cast<float*>(to->data()), kStride, accumulate);

    EXPECT_EQ(Bits(DownloadItems<float>(*to)), Bits(expected));
  }
}

}  // namespace
}  // namespace bascule
