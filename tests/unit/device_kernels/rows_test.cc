#include "kernels/rows_device.h"

#include <vector>

#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"
#include "tests/unit/device_kernels/random_floats.h"
#include "tests/unit/device_kernels/test_device.h"

namespace bascule {
namespace {

class RowsTest : public DeviceKernelTest {
 protected:
  static float* Floats(TestMemory& memory) { return reinterpret_cast<float*>(memory.data()); }
  std::vector<float> RandomOf(std::int64_t count) { return RandomFloats(random_, static_cast<std::size_t>(count)); }
  Random random_{23};
};

TEST_F(RowsTest, TakesTheRowsThatATableHasAndZerosForThoseItHasNot) {
  constexpr std::int64_t kFirst = 20, kRows = 5, kSize = 131;
  const std::vector<std::int32_t> index = {24, 19, 20, 25, 22, -1, 20};
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    const std::vector<std::byte> table = RandomWeights(random_, type, kRows * kSize);
    std::vector<float> expected(index.size() * kSize);
    for (std::size_t r = 0; r < index.size(); ++r) {
      const std::int64_t row = index[r] - kFirst;
      if (row < 0 || row >= kRows) continue;
      WidenOnHost({table.data(), type}, row * kSize, kSize, expected.data() + r * kSize);
    }
    const auto there = Upload(table), rows = UploadItems<std::int32_t>(index);
    const auto y = UploadItems<float>(RandomOf(static_cast<std::int64_t>(expected.size())));

    Run(kernels().take_rows, RowTable{{there->data(), type}, kFirst, kRows, kSize},
        reinterpret_cast<const std::int32_t*>(rows->data()), static_cast<std::int64_t>(index.size()), Floats(*y));

    EXPECT_EQ(Bits(DownloadItems<float>(*y)), Bits(expected));
  }
}

TEST_F(RowsTest, PlacesRowsWithinWiderOnesAndNothingBetweenThem) {
  constexpr std::int64_t kRows = 6, kSize = 150, kFrom = 151, kTo = 400, kAt = 33;
  const std::vector<float> x = RandomOf(kRows * kFrom);
  std::vector<float> expected = RandomOf(kRows * kTo);
  const auto from = UploadItems<float>(x), to = UploadItems<float>(expected);
  for (std::int64_t r = 0; r < kRows; ++r) {
    std::copy_n(x.data() + r * kFrom, kSize, expected.data() + r * kTo + kAt);
  }

  Run(kernels().place_rows, Floats(*from), kFrom, kRows, kSize, Floats(*to) + kAt, kTo);

  EXPECT_EQ(Bits(DownloadItems<float>(*to)), Bits(expected));
}

TEST_F(RowsTest, NormalisesTheFirstHeadsOfEachRowWithTheHostsBits) {
  for (const std::int64_t size : {1, 10, 16, 24, 64, 128, 130}) {
    SCOPED_TRACE(size);
    constexpr std::int64_t kRows = 3, kHeads = 2;
    const std::int64_t stride = (kHeads + 1) * size + 1;
    std::vector<float> x = RandomOf(kRows * stride);
    const std::vector<std::byte> w = RandomWeights(random_, WeightType::kBf16, static_cast<std::size_t>(size));
    const auto memory = UploadItems<float>(x), weights = Upload(w);
    for (std::int64_t at = 0; at < kRows * stride; at += stride) {
      for (std::int64_t head = 0; head < kHeads; ++head) {
        float* const of_head = x.data() + at + head * size;
        RmsNormOnHost(of_head, size, {w.data(), WeightType::kBf16}, 1e-6f, of_head);
      }
    }

    Run(kernels().rms_norm_heads, Floats(*memory), kRows, stride, kHeads, size,
        WeightView{weights->data(), WeightType::kBf16}, 1e-6f);

    ASSERT_EQ(Bits(DownloadItems<float>(*memory)), Bits(x));
  }
}

TEST_F(RowsTest, GatesTheTwoHalvesOfEachRowWithTheHostsBits) {
  for (const std::int64_t size : {1, 56, 300}) {
    constexpr std::int64_t kRows = 4;
    const std::vector<float> x = RandomOf(kRows * 2 * size);
    std::vector<float> expected(static_cast<std::size_t>(kRows * size));
    for (std::int64_t r = 0; r < kRows; ++r) {
      SwigluOnHost(x.data() + r * 2 * size, x.data() + r * 2 * size + size, size, expected.data() + r * size);
    }
    const auto from = UploadItems<float>(x), to = UploadItems<float>(RandomOf(kRows * size));

    Run(kernels().swiglu_rows, Floats(*from), kRows, size, Floats(*to));

    ASSERT_EQ(Bits(DownloadItems<float>(*to)), Bits(expected)) << size;
  }
}

}  // namespace
}  // namespace bascule
