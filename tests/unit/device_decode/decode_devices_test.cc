// The devices of a decoder beside others that use NCCL.
#include <gtest/gtest.h>

#include "engine_side/decode/device_decoder.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/support/fake_nccl/fill_device.h"

namespace bascule {
namespace {

TEST(DecodeDevicesTest, WhereADeviceHasNoRoomForACommunicatorItsRanksCopyFromEachOther) {
  const std::vector<int> ordinals = {0, 1};
  EXPECT_NE(DecodeDevices::Open(ordinals).value().collective, nullptr);
  const auto others = FillDevice(FakeDevice(1), **LoadCommunicators());

  const Result<DecodeDevices> opened = DecodeDevices::Open(ordinals);

  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(opened->collective, nullptr);
}

}  // namespace
}  // namespace bascule
