#include "kernels/quantize.h"

#include <cstring>
#include <vector>

#include "kernels/cast.h"
#include "tests/unit/device_kernels/test_device.h"
#include "tests/unit/kernels/random_boxes.h"

namespace bascule {
namespace {

struct Matrix {
  std::int64_t rows, columns;
  std::size_t elements() const { return static_cast<std::size_t>(rows * columns); }
  std::size_t scales() const { return static_cast<std::size_t>(Fp8Blocks(rows) * Fp8Blocks(columns)); }
};

// Finite numbers of all magnitudes, or of one, and blocks of nothing but zeros.
std::vector<std::uint16_t> RandomWeights(Random& random, std::size_t count) {
  std::vector<std::uint16_t> weights(count);
  const std::int64_t lowest = Uniform(random, 0, 0xfe), highest = Uniform(random, lowest, 0xfe);
  for (std::uint16_t& weight : weights) {
    const auto exponent = static_cast<std::uint64_t>(Uniform(random, lowest, highest));
    weight = static_cast<std::uint16_t>((random() & 0x807f) | exponent << 7);
  }
  if (Uniform(random, 0, 3) == 0) std::fill_n(weights.begin(), count / 2, std::uint16_t{0});
  return weights;
}

class DeviceQuantizeTest : public DeviceKernelTest {
 protected:
  struct Quantized {
    std::vector<std::byte> codes;
    std::vector<float> scale_inv;
    std::int64_t first_not_finite;
  };
  Quantized OnDevice(const Matrix& m, std::span<const std::uint16_t> weights, std::size_t misalignment) {
    const auto bf16 = Upload(std::as_bytes(weights), misalignment);
    const auto codes = Upload(std::vector<std::byte>(m.elements()), misalignment);
    const auto scale_inv = Upload(std::vector<std::byte>(4 * m.scales()));
    const auto first = Upload(std::vector<std::byte>(8));
    Run(kernels().quantize_fp8_blocks, m.rows, m.columns, bf16->data(), codes->data(),
        reinterpret_cast<float*>(scale_inv->data()), reinterpret_cast<std::int64_t*>(first->data()));
    return {codes->Read(), DownloadItems<float>(*scale_inv), DownloadItems<std::int64_t>(*first)[0]};
  }
};

TEST_F(DeviceQuantizeTest, QuantisesAndDequantisesAsTheHostDoes) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed);
    SetSeed(seed);
    Matrix m{Uniform(random, 0, 300), Uniform(random, 0, 300)};
    if (seed % 2 == 0) m.columns = (m.columns + 7) / 8 * 8;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << m.rows << " x " << m.columns);
    const std::vector<std::uint16_t> weights = RandomWeights(random, m.elements());
    std::vector<std::byte> codes(m.elements()), scale_bytes(4 * m.scales()), restored(2 * m.elements());
    ASSERT_TRUE(QuantizeFp8BlocksOnHost(m.rows, m.columns, std::as_bytes(std::span(weights)), codes, scale_bytes).ok());
    DequantizeFp8BlocksOnHost(m.rows, m.columns, codes, scale_bytes, restored);
    const std::size_t misalignment = seed % 4 == 0 ? 2 : 0;

    const Quantized quantized = OnDevice(m, weights, misalignment);

    ASSERT_EQ(quantized.first_not_finite, -1);
    ASSERT_EQ(quantized.codes, codes);
    ASSERT_TRUE(std::ranges::equal(std::as_bytes(std::span(quantized.scale_inv)), scale_bytes));

    const auto codes_memory = Upload(codes, misalignment), scales = Upload(scale_bytes);
    const auto bf16 = Upload(std::vector<std::byte>(restored.size()), misalignment);
    Run(kernels().dequantize_fp8_blocks, m.rows, m.columns, codes_memory->data(),
        reinterpret_cast<const float*>(scales->data()), bf16->data());
    ASSERT_EQ(bf16->Read(), restored);
  }
}

TEST_F(DeviceQuantizeTest, NamesTheFirstElementThatIsNotFinite) {
  Random random(9);
  const Matrix m{260, 264};
  std::vector<std::uint16_t> weights = RandomWeights(random, m.elements());
  weights[60'000] = 0x7fc0;
  weights[40'003] = 0xff80;
  weights[40'005] = 0x7f81;

  EXPECT_EQ(OnDevice(m, weights, 0).first_not_finite, 40'003);
}

TEST_F(DeviceQuantizeTest, EveryCodeComesBackAsTheHostReadsIt) {
  const Matrix m{2, 128};
  std::vector<std::byte> codes(256), expected(512);
  for (std::size_t i = 0; i < 256; ++i) codes[i] = static_cast<std::byte>(i);
  const std::vector<float> scale_inv = {0.37f};
  DequantizeFp8BlocksOnHost(m.rows, m.columns, codes, std::as_bytes(std::span(scale_inv)), expected);
  const auto codes_memory = Upload(codes), scales = UploadItems(std::span(scale_inv));
  const auto bf16 = Upload(std::vector<std::byte>(512));

  Run(kernels().dequantize_fp8_blocks, m.rows, m.columns, codes_memory->data(),
      reinterpret_cast<const float*>(scales->data()), bf16->data());

  EXPECT_EQ(bf16->Read(), expected);
}

}  // namespace
}  // namespace bascule
