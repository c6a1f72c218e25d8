#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/add.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"
#include "tests/unit/device_kernels/random_floats.h"
#include "tests/unit/device_kernels/test_device.h"

namespace bascule {
namespace {

constexpr std::int64_t kSizes[] = {1, 7, 16, 64, 255, 896, 4096, 5003};

class ActivationsTest : public DeviceKernelTest {
 protected:
  static const float* Floats(TestMemory& memory) { return reinterpret_cast<const float*>(memory.data()); }
  static float* MutableFloats(TestMemory& memory) { return reinterpret_cast<float*>(memory.data()); }
  std::vector<std::byte> Weights(WeightType type, std::int64_t count) {
    return RandomWeights(random_, type, static_cast<std::size_t>(count));
  }
  Random random_{17};
};

TEST_F(ActivationsTest, NormalisesRowsWithTheHostsBits) {
  for (const std::int64_t size : kSizes) {
    for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
      SCOPED_TRACE(size);
      constexpr std::int64_t kRows = 3;
      std::vector<float> x = RandomFloats(random_, static_cast<std::size_t>(kRows * size));
      const std::vector<std::byte> w = Weights(type, size);
      std::vector<float> expected(x.size());
      for (std::int64_t row = 0; row < kRows; ++row) {
        RmsNormOnHost(x.data() + row * size, size, {w.data(), type}, 1e-6f, expected.data() + row * size);
      }
      const auto memory = UploadItems<float>(x), weights = Upload(w);

      Run(kernels().rms_norm, Floats(*memory), kRows, size, WeightView{weights->data(), type}, 1e-6f,
          MutableFloats(*memory));

      ASSERT_EQ(Bits(DownloadItems<float>(*memory)), Bits(expected));
    }
  }
}

TEST_F(ActivationsTest, AddsRowsOrOneBiasWithTheHostsBits) {
  for (const std::int64_t size : kSizes) {
    for (const std::int64_t stride : {std::int64_t{0}, size}) {
      SCOPED_TRACE(size);
      constexpr std::int64_t kRows = 4;
      std::vector<float> y = RandomFloats(random_, static_cast<std::size_t>(kRows * size));
      const std::vector<std::byte> x = Weights(WeightType::kBf16, kRows * size);
      const auto memory = UploadItems<float>(y), bias = Upload(x);
      for (std::int64_t row = 0; row < kRows; ++row) {
        AddOnHost(WeightView{x.data(), WeightType::kBf16}.From(row * stride), size, y.data() + row * size);
      }

      Run(kernels().add, WeightView{bias->data(), WeightType::kBf16}, stride, kRows, size, MutableFloats(*memory));

      ASSERT_EQ(Bits(DownloadItems<float>(*memory)), Bits(y));
    }
  }
}

TEST_F(ActivationsTest, GatesWithTheHostsBitsAlsoWhereTheExponentialEnds) {
  std::vector<float> gate = RandomFloats(random_, 5000), up = RandomFloats(random_, 5000);
  for (std::size_t i = 0; i < 400; ++i) gate[i] = static_cast<float>(i) * 0.5f - 100.0f;
  std::vector<float> expected(gate.size());
  SwigluOnHost(gate.data(), up.data(), static_cast<std::int64_t>(gate.size()), expected.data());
  const auto gates = UploadItems<float>(gate), ups = UploadItems<float>(up);

  Run(kernels().swiglu, Floats(*gates), Floats(*ups), static_cast<std::int64_t>(gate.size()), MutableFloats(*gates));

  EXPECT_EQ(Bits(DownloadItems<float>(*gates)), Bits(expected));
}

TEST_F(ActivationsTest, RotatesEveryHeadOfEveryRowWithTheHostsBits) {
  constexpr std::int64_t kRows = 5, kHeads = 3, kHalf = 20, kStride = kHeads * 2 * kHalf + 7;
  std::vector<float> x = RandomFloats(random_, kRows * kStride);
  std::vector<float> cosines(kRows * kHalf), sines(kRows * kHalf);
  const std::vector<double> frequencies = RopeFrequencies(10'000, 2 * kHalf);
  for (std::int64_t row = 0; row < kRows; ++row) {
    RopeAngles(frequencies, 1000 * row, std::span(cosines).subspan(static_cast<std::size_t>(row * kHalf), kHalf),
               std::span(sines).subspan(static_cast<std::size_t>(row * kHalf), kHalf));
  }
  const auto memory = UploadItems<float>(x), c = UploadItems<float>(cosines), s = UploadItems<float>(sines);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t head = 0; head < kHeads; ++head) {
      RopeOnHost(x.data() + row * kStride + head * 2 * kHalf,
                 std::span(cosines).subspan(static_cast<std::size_t>(row * kHalf), kHalf),
                 std::span(sines).subspan(static_cast<std::size_t>(row * kHalf), kHalf));
    }
  }

  Run(kernels().rope, MutableFloats(*memory), kRows, kStride, kHeads, kHalf, Floats(*c), Floats(*s));

  EXPECT_EQ(Bits(DownloadItems<float>(*memory)), Bits(x));
}

}  // namespace
}  // namespace bascule
