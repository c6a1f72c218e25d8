// The quantising kernel against an oracle in Python that shares no code with it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "kernels/cast.h"
#include "kernels/quantize.h"
#include "tests/support/run_python.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

struct Matrix {
  TensorSpec spec;
  std::vector<std::uint16_t> bf16;
};

// Magnitudes over all binades that a block can hold, a block of zeros and one of denormals where there are so many.
Matrix MixedMatrix(std::int64_t rows, std::int64_t columns, std::mt19937& random) {
  Matrix matrix{{fmt::format("m{}x{}.weight", rows, columns), DType::kBf16, {rows, columns}}, {}};
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const std::int64_t block = i / columns / 128 * 100 + i % columns / 128;
    const int binade = static_cast<int>(random() % 24) + static_cast<int>(block * 37 % 200);
    auto bits = static_cast<std::uint16_t>((random() & 0x807fu) | static_cast<unsigned>(binade) << 7);
    if (block == 1) bits = 0;
    if (block == 100) bits &= 0x807fu;
    matrix.bf16.push_back(bits);
  }
  return matrix;
}

std::vector<std::byte> BytesOf(std::span<const std::byte> data) { return {data.begin(), data.end()}; }

std::span<const std::byte> DataOf(const Checkpoint& checkpoint, std::string_view name) {
  const auto& tensors = checkpoint.tensors();
  const auto found = std::ranges::find(tensors, name, &TensorSpec::name);
  CHECK(found != tensors.end());
  return checkpoint.Data(static_cast<int>(found - tensors.begin()));
}

TEST(QuantizeOracleTest, CodesAndScalesEqualAnIndependentReferenceBitForBitForEverySizeOfEdgeBlock) {
  const TempDirectory dir;
  std::mt19937 random(320256);
  std::vector<Matrix> matrices;
  for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {320, 256}, {128, 128}, {129, 257}, {1, 1}, {1, 300}, {300, 1}, {64, 96}, {127, 129}}) {
    matrices.push_back(MixedMatrix(rows, columns, random));
  }
  std::vector<TensorSpec> specs;
  std::vector<std::span<const std::byte>> data;
  for (const Matrix& matrix : matrices) {
    specs.push_back(matrix.spec);
    data.push_back(std::as_bytes(std::span(matrix.bf16)));
  }
  ASSERT_TRUE(WriteSafetensors(dir.File("in.safetensors"), specs, data, {}).ok());
  RunPython("fp8_oracle.py", {dir.File("in.safetensors"), dir.File("expected.safetensors")});
  const auto expected = Checkpoint::Open(dir.File("expected.safetensors"));
  ASSERT_TRUE(expected.ok()) << expected.status().ToString();

  for (const Matrix& matrix : matrices) {
    SCOPED_TRACE(matrix.spec.name);
    const std::int64_t rows = matrix.spec.shape[0];
    const std::int64_t columns = matrix.spec.shape[1];
    std::vector<std::byte> codes(matrix.bf16.size());
    std::vector<std::byte> scale_inv(static_cast<std::size_t>(4 * Fp8Blocks(rows) * Fp8Blocks(columns)));

    const Status status =
        QuantizeFp8BlocksOnHost(rows, columns, std::as_bytes(std::span(matrix.bf16)), codes, scale_inv);

    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(codes, BytesOf(DataOf(**expected, matrix.spec.name)));
    EXPECT_EQ(scale_inv, BytesOf(DataOf(**expected, matrix.spec.name + "_scale_inv")));
  }
}

}  // namespace
}  // namespace bascule
