#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/backend.h"

namespace bascule {
namespace {

TEST(CudaModuleTest, OpensOnAMachineWithoutADriverAndIsOpenedOnce) {
  const Result<DeviceBackend*> backend = LoadCudaBackend();

  ASSERT_TRUE(backend.ok()) << backend.status().ToString();
  EXPECT_EQ((*backend)->name(), "cuda");
  EXPECT_EQ(*LoadCudaBackend(), *backend);
  EXPECT_EQ((*backend)->Part("no_such_part"), nullptr);
  EXPECT_NE((*backend)->Part("backend"), nullptr);
}

TEST(CudaModuleTest, WithoutADeviceTheDriversOwnWordsSayWhy) {
  const Result<DeviceBackend*> backend = LoadCudaBackend();
  ASSERT_TRUE(backend.ok()) << backend.status().ToString();
  const Result<std::vector<DeviceDescription>> devices = (*backend)->Devices();
  if (devices.ok()) GTEST_SKIP() << "this machine has " << devices->size() << " CUDA devices";

  EXPECT_EQ(devices.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(devices.status().reason(), "no_cuda_device");
  EXPECT_THAT(devices.status().message(), testing::HasSubstr("cudaGetDeviceCount: cudaError"));
  EXPECT_EQ((*backend)->Open(0).status(), devices.status());
}

}  // namespace
}  // namespace bascule
