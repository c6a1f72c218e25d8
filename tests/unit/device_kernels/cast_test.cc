#include <cstring>
#include <vector>

#include "kernels/cast.h"
#include "tests/unit/device_kernels/test_device.h"
#include "tests/unit/kernels/random_boxes.h"

namespace bascule {
namespace {

using DeviceCastTest = DeviceKernelTest;

// Every bf16 exponent and sign with low bits that round down, to even, up, and NaN payloads of all kinds.
std::vector<std::byte> HardFloats() {
  std::vector<std::uint32_t> bits;
  for (std::uint32_t high = 0; high < 0x10000; high += 0x1f) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      bits.push_back(high << 16 | low);
  }
  for (const std::uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fbfffffu, 0x7fc00000u, 0xffffffffu}) bits.push_back(nan);
  for (const std::uint32_t denormal : {0x00000001u, 0x007fffffu, 0x80008000u, 0x00008001u}) bits.push_back(denormal);
  const auto bytes = std::as_bytes(std::span(bits));
  return {bytes.begin(), bytes.end()};
}

// C-074.
TEST_F(DeviceCastTest, NarrowsEveryKindOfFloatAsTheHostDoes) {
  const std::vector<std::byte> from = HardFloats();
  std::vector<std::byte> expected(from.size() / 2);
  CastF32ToBf16OnHost(from, expected);
  const auto source = Upload(from);
  const auto target = Upload(std::vector<std::byte>(expected.size()));

  Run(kernels().cast_f32_to_bf16, source->data(), target->data(), static_cast<std::int64_t>(from.size() / 4));

  EXPECT_EQ(target->Read(), expected);
}

TEST_F(DeviceCastTest, CastsAnyCountAtAnyAlignmentOfElements) {
  for (const std::size_t count : {0, 1, 7, 8, 9, 300, 8191, 8192, 20'001}) {
    for (const std::size_t misalignment : {0, 4, 8}) {
      SCOPED_TRACE(testing::Message() << count << " elements, " << misalignment << " bytes off");
      Random random(count);
      SetSeed(count);
      const std::vector<std::byte> wide = RandomBytes(random, 4 * count), narrow = RandomBytes(random, 2 * count);
      std::vector<std::byte> narrowed(2 * count), widened(4 * count);
      CastF32ToBf16OnHost(wide, narrowed);
      CastBf16ToF32OnHost(narrow, widened);
      const auto wide_memory = Upload(wide, misalignment), narrow_memory = Upload(narrow, misalignment);
      const auto to_narrow = Upload(std::vector<std::byte>(2 * count), misalignment);
      const auto to_wide = Upload(std::vector<std::byte>(4 * count), misalignment);

      Run(kernels().cast_f32_to_bf16, wide_memory->data(), to_narrow->data(), static_cast<std::int64_t>(count));
      Run(kernels().cast_bf16_to_f32, narrow_memory->data(), to_wide->data(), static_cast<std::int64_t>(count));

      EXPECT_EQ(to_narrow->Read(), narrowed);
      EXPECT_EQ(to_wide->Read(), widened);
    }
  }
}

}  // namespace
}  // namespace bascule
