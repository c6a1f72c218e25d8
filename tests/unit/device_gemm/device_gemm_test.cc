// cuBLAS behind the module, against sums in double precision; over the fake libraries in one program, over the real
// ones in another.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "device/backend.h"
#include "kernels/cast.h"
#include "kernels/gemm_device.h"
#include "tests/support/device_work/device_work.h"

namespace bascule {
namespace {

struct Shape {
  std::int64_t rows, k, outputs;
};
constexpr Shape kShapes[] = {{1, 64, 33}, {3, 40, 7}, {17, 96, 130}, {64, 33, 65}};
constexpr std::int64_t kStride = 200;

class DeviceGemmTest : public testing::Test {
 protected:
  void SetUp() override {
    const Result<DeviceBackend*> backend = LoadCudaBackend();
    ASSERT_TRUE(backend.ok()) << backend.status().ToString();
    const Result<Device*> device = (*backend)->Open(0);
    if (device.status().reason() == "no_cuda_device") GTEST_SKIP() << device.status().ToString();
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    device_ = *device;
    part_ = reinterpret_cast<decltype(&bascule_cuda_gemm)>((*backend)->Part("gemm"))();
    stream_ = device_->MakeStream(StreamPriority::kNormal).value();
  }

  std::unique_ptr<DeviceGemm> Make(ActivationPrecision precision) {
    Result<std::unique_ptr<DeviceGemm>> gemm =
        part_->make(*device_, {.activations = 1 << 14, .results = 1 << 14, .precision = precision});
    EXPECT_TRUE(gemm.ok()) << gemm.status().ToString();
    return std::move(gemm).value();
  }
  std::vector<float> Random(std::int64_t count) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> floats(static_cast<std::size_t>(count));
    for (float& one : floats) one = normal(random_);
    return floats;
  }
  std::unique_ptr<DeviceBuffer> Upload(std::span<const std::byte> bytes) {
    auto memory = device_->memory().Allocate(bytes.size()).value();
    EXPECT_TRUE(WriteDevice(*device_, memory->bytes(), bytes).ok());
    return memory;
  }
  std::vector<float> Download(const DeviceBuffer& memory) {
    const std::vector<std::byte> bytes = ReadDevice(*device_, memory.bytes()).value();
    std::vector<float> floats(bytes.size() / sizeof(float));
    std::memcpy(floats.data(), bytes.data(), bytes.size());
    return floats;
  }

  // What bf16 holds of `w`, in its bytes; and the same numbers in `w`.
  static std::vector<std::byte> Narrow(std::vector<float>& w) {
    std::vector<std::byte> bytes(w.size() * 2);
    for (std::size_t i = 0; i < w.size(); ++i) {
      const std::uint16_t bits = Bf16BitsOfF32Bits(std::bit_cast<std::uint32_t>(w[i]));
      std::memcpy(bytes.data() + 2 * i, &bits, 2);
      w[i] = std::bit_cast<float>(F32BitsOfBf16Bits(bits));
    }
    return bytes;
  }

  struct Case {
    std::vector<float> x, w, y;  // before
    std::vector<float> result;
  };
  Case Multiply(DeviceGemm& gemm, const Shape& shape, WeightType type, bool accumulate) {
    Case one{Random(shape.rows * shape.k), Random(shape.outputs * shape.k), Random(shape.rows * kStride), {}};
    const std::vector<std::byte> narrow = type == WeightType::kBf16 ? Narrow(one.w) : std::vector<std::byte>();
    const auto x = Upload(std::as_bytes(std::span(one.x))), y = Upload(std::as_bytes(std::span(one.y)));
    const auto w = Upload(type == WeightType::kBf16 ? std::span(narrow) : std::as_bytes(std::span(one.w)));
    const Status status = gemm.Multiply({.x = reinterpret_cast<const float*>(x->bytes().data()),
                                         .rows = shape.rows,
                                         .k = shape.k,
                                         .w = {w->bytes().data(), type},
                                         .outputs = shape.outputs,
                                         .y = reinterpret_cast<float*>(y->bytes().data()),
                                         .y_stride = kStride,
                                         .accumulate = accumulate},
                                        stream_->handle());
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_TRUE(Drain(*device_, *stream_).ok());
    one.result = Download(*y);
    return one;
  }

  // Every output within `unit` times the sum of magnitudes; what lies between rows as it was.
  static void Check(const Case& one, const Shape& shape, bool accumulate, double unit) {
    for (std::int64_t r = 0; r < shape.rows; ++r) {
      for (std::int64_t o = 0; o < kStride; ++o) {
        const auto at = static_cast<std::size_t>(r * kStride + o);
        if (o >= shape.outputs) {
          ASSERT_EQ(one.result[at], one.y[at]) << r << " " << o;
          continue;
        }
        double sum = accumulate ? one.y[at] : 0, magnitude = std::abs(sum);
        for (std::int64_t i = 0; i < shape.k; ++i) {
          const double term = double{one.x[static_cast<std::size_t>(r * shape.k + i)]} *
                              double{one.w[static_cast<std::size_t>(o * shape.k + i)]};
          sum += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(one.result[at], sum, unit * magnitude) << r << " " << o << " k=" << shape.k;
      }
    }
  }

  Device* device_ = nullptr;
  const DeviceGemmPart* part_ = nullptr;
  std::unique_ptr<DeviceStream> stream_;
  std::mt19937 random_{5};
};

TEST_F(DeviceGemmTest, ProductsLieWithinTheBoundOfTheContractForEitherTypeOfWeights) {
  const auto gemm = Make(ActivationPrecision::kFull);
  for (const Shape& shape : kShapes) {
    for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
      for (const bool accumulate : {false, true}) {
        const Case one = Multiply(*gemm, shape, type, accumulate);

        Check(one, shape, accumulate, static_cast<double>(shape.k + 8) * 0x1p-23);
      }
    }
  }
}

TEST_F(DeviceGemmTest, RoundedActivationsCostWhatTheContractSays) {
  const auto gemm = Make(ActivationPrecision::kBf16);
  for (const Shape& shape : kShapes) {
    const Case one = Multiply(*gemm, shape, WeightType::kBf16, /*accumulate=*/false);

    Check(one, shape, /*accumulate=*/false, 0x1p-8);
  }
}

TEST_F(DeviceGemmTest, TheSameProductOnceMoreIsTheSameToTheBitAlsoOnAnotherStream) {
  const auto gemm = Make(ActivationPrecision::kFull);
  std::vector<float> first;
  for (int run = 0; run < 3; ++run) {
    random_.seed(9);
    stream_ = device_->MakeStream(StreamPriority::kNormal).value();
    const Case one = Multiply(*gemm, kShapes[2], WeightType::kBf16, /*accumulate=*/false);
    if (run == 0) first = one.result;

    EXPECT_EQ(one.result, first);
  }
}

TEST_F(DeviceGemmTest, AProductIsCapturedAndLaunchedAsOftenAsOneLikes) {
  const auto gemm = Make(ActivationPrecision::kFull);
  const Shape shape{2, 64, 32};
  std::vector<float> weights = Random(shape.outputs * shape.k);
  const auto w = Upload(Narrow(weights));
  const auto x = device_->memory().Allocate(static_cast<std::size_t>(shape.rows * shape.k) * 4).value();
  const auto y = device_->memory().Allocate(static_cast<std::size_t>(shape.rows * kStride) * 4).value();
  ASSERT_TRUE(stream_->BeginCapture().ok());
  const Status captured = gemm->Multiply({.x = reinterpret_cast<const float*>(x->bytes().data()),
                                          .rows = shape.rows,
                                          .k = shape.k,
                                          .w = {w->bytes().data(), WeightType::kBf16},
                                          .outputs = shape.outputs,
                                          .y = reinterpret_cast<float*>(y->bytes().data()),
                                          .y_stride = kStride},
                                         stream_->handle());
  const auto graph = stream_->EndCapture();
  ASSERT_TRUE(captured.ok()) << captured.ToString();
  ASSERT_TRUE(graph.ok()) << graph.status().ToString();

  for (int launch = 0; launch < 3; ++launch) {
    Case one{Random(shape.rows * shape.k), weights, std::vector<float>(shape.rows * kStride), {}};
    ASSERT_TRUE(WriteDevice(*device_, x->bytes(), std::as_bytes(std::span(one.x))).ok());
    ASSERT_TRUE(stream_->Launch(**graph).ok());
    ASSERT_TRUE(Drain(*device_, *stream_).ok());
    one.result = Download(*y);

    Check(one, shape, /*accumulate=*/false, static_cast<double>(shape.k + 8) * 0x1p-23);
  }
}

}  // namespace
}  // namespace bascule
