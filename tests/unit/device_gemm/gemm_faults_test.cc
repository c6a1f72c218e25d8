// What becomes of cuBLAS's errors, over the fake library.
#include <cublas_v2.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/gemm_device.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/fake_device.h"

namespace bascule {
namespace {

using testing::HasSubstr;

Result<std::unique_ptr<DeviceGemm>> MakeGemm() {
  static const auto* const part = reinterpret_cast<decltype(&bascule_cuda_gemm)>((*LoadCudaBackend())->Part("gemm"))();
  return part->make(FakeDevice(), {.activations = 1024, .results = 1024, .precision = ActivationPrecision::kFull});
}

// A product of zeros.
class GemmFaultsTest : public testing::Test {
 protected:
  Status Multiply(DeviceGemm& gemm) {
    auto* const memory = memory_->bytes().data();
    return gemm.Multiply({.x = reinterpret_cast<const float*>(memory),
                          .rows = 2,
                          .k = 16,
                          .w = {memory + 4096, WeightType::kBf16},
                          .outputs = 8,
                          .y = reinterpret_cast<float*>(memory + 8192),
                          .y_stride = 8},
                         stream_->handle());
  }
  std::unique_ptr<DeviceBuffer> memory_ = FakeDevice().memory().Allocate(16384).value();
  std::unique_ptr<DeviceStream> stream_ = FakeDevice().MakeStream(StreamPriority::kNormal).value();
};

TEST_F(GemmFaultsTest, AProductThatFailsSaysWhyAndTheNextOneGoesOn) {
  const auto gemm = MakeGemm().value();
  FakeCuda::Fail("cublasGemmEx_64", 1, CUBLAS_STATUS_EXECUTION_FAILED);
  const Status failed = Multiply(*gemm);

  EXPECT_EQ(failed.reason(), "device_error");
  EXPECT_THAT(failed.message(), HasSubstr("cublasGemmEx: CUBLAS_STATUS_EXECUTION_FAILED"));
  EXPECT_TRUE(Multiply(*gemm).ok());
  EXPECT_TRUE(Drain(FakeDevice(), *stream_).ok());
}

TEST_F(GemmFaultsTest, AWorkspaceThatWasNotSetIsSetBeforeTheNextProduct) {
  const auto gemm = MakeGemm().value();
  FakeCuda::Fail("cublasSetWorkspace_v2", 1, CUBLAS_STATUS_ALLOC_FAILED);

  EXPECT_EQ(Multiply(*gemm).reason(), "device_memory");
  EXPECT_TRUE(Multiply(*gemm).ok());
  EXPECT_TRUE(Drain(FakeDevice(), *stream_).ok());
}

TEST_F(GemmFaultsTest, WithoutRoomForAHandleOrAWorkspaceNothingIsMadeAndNothingIsKept) {
  (void)FakeDevice().memory().Allocate(1).value();
  const FakeCudaCensus before = FakeCuda::Census();
  FakeCuda::Fail("cublasCreate_v2", 1, CUBLAS_STATUS_ALLOC_FAILED);
  const Status no_handle = MakeGemm().status();
  FakeCuda::Fail("cudaMalloc", 2, 2);
  const Status no_memory = MakeGemm().status();

  EXPECT_EQ(no_handle.reason(), "device_memory");
  EXPECT_EQ(no_memory.reason(), "device_memory");
  EXPECT_EQ(FakeCuda::Census().allocations, before.allocations);
}

}  // namespace
}  // namespace bascule
