#include "device/host/host_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace bascule {
namespace {

std::size_t PageBytes() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

TEST(HostMemoryTest, BytesAreZeroPageAlignedAndExactlyAsManyAsAskedFor) {
  for (const std::size_t size : {std::size_t{1}, PageBytes() + 1, (std::size_t{5} << 20) + 3}) {
    const auto buffer = HostMemory().Allocate(size);

    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    const std::span<const std::byte> bytes = std::as_const(**buffer).bytes();
    EXPECT_EQ(bytes.size(), size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % PageBytes(), 0u);
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(HostMemoryTest, EveryPageIsResidentBeforeTheFirstWrite) {
  const auto buffer = HostMemory().Allocate(std::size_t{4} << 20);
  ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
  const std::span<std::byte> bytes = (*buffer)->bytes();
  std::vector<unsigned char> resident(bytes.size() / PageBytes());

  ASSERT_EQ(mincore(bytes.data(), bytes.size(), resident.data()), 0);

  EXPECT_TRUE(std::all_of(resident.begin(), resident.end(), [](unsigned char r) { return (r & 1) != 0; }));
}

TEST(HostMemoryTest, NothingAskedForIsAnEmptyBuffer) {
  const auto buffer = HostMemory().Allocate(0);

  ASSERT_TRUE(buffer.ok());
  EXPECT_TRUE((*buffer)->bytes().empty());
}

TEST(HostMemoryTest, MoreThanTheAddressSpaceIsResourceExhaustedWithTheByteCount) {
  for (const std::size_t size : {std::size_t{1} << 56, std::numeric_limits<std::size_t>::max()}) {
    const Status status = HostMemory().Allocate(size).status();

    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(status.reason(), "device_memory");
    EXPECT_NE(status.message().find(fmt::format("bytes={}", size)), std::string::npos) << status.message();
  }
}

TEST(HostMemoryTest, AReleasedBufferGivesItsAddressesBack) {
  const std::byte* address = nullptr;
  {
    const auto buffer = HostMemory().Allocate(std::size_t{8} << 20);
    ASSERT_TRUE(buffer.ok());
    address = (*buffer)->bytes().data();
  }
  unsigned char resident = 0;

  EXPECT_EQ(mincore(const_cast<std::byte*>(address), PageBytes(), &resident), -1);
  EXPECT_EQ(errno, ENOMEM);
}

TEST(HostMemoryTest, SaysItsName) { EXPECT_EQ(HostMemory().name(), "host"); }

}  // namespace
}  // namespace bascule
