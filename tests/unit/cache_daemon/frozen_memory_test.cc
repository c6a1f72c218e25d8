#include "engine_side/cache_daemon/frozen_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "tests/support/process_census.h"

namespace bascule {
namespace {

constexpr std::size_t kBytes = 3 * 4096 + 5;

std::unique_ptr<DeviceBuffer> Filled() {
  auto buffer = FreezableMemory().Allocate(kBytes).value();
  std::ranges::fill(buffer->bytes(), std::byte{7});
  return buffer;
}

// C-125.
TEST(FrozenMemoryTest, NobodyWritesToWhatIsFrozenNotEvenItsMaker) {
  const auto buffer = Filled();
  std::byte* const before = buffer->bytes().data();
  EXPECT_EQ(buffer->shared_fd(), -1) << "what may still change is not shared";

  ASSERT_TRUE(buffer->Freeze().ok());

  EXPECT_FALSE(buffer->writable());
  EXPECT_EQ(buffer->bytes().data(), before) << "whoever reads it goes on";
  const int fd = buffer->shared_fd();
  EXPECT_LT(write(fd, "x", 1), 0);
  EXPECT_NE(ftruncate(fd, 1), 0);
  EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(mprotect(before, kBytes, PROT_READ | PROT_WRITE), 0);
  const UniqueFd again(open(fmt::format("/proc/self/fd/{}", fd).c_str(), O_RDWR | O_CLOEXEC));
  if (again.valid()) {
    EXPECT_LT(pwrite(again.get(), "x", 1, 0), 0);
    EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0), MAP_FAILED);
  }
  EXPECT_TRUE(std::ranges::all_of(buffer->bytes(), [](std::byte byte) { return byte == std::byte{7}; }));
}

TEST(FrozenMemoryTest, AMappingOutlivesTheMakerAndSharesItsPages) {
  auto buffer = Filled();
  ASSERT_TRUE(buffer->Freeze().ok());
  auto mapped = MapFrozen(UniqueFd(dup(buffer->shared_fd())), kBytes);
  ASSERT_TRUE(mapped.ok()) << mapped.status().ToString();

  buffer.reset();

  EXPECT_EQ(MappingsOf("bascule_weights"), 1u);
  EXPECT_FALSE((*mapped)->writable());
  EXPECT_EQ((*mapped)->bytes()[kBytes - 1], std::byte{7});
  mapped = Status::Internal("let go");
  EXPECT_EQ(MappingsOf("bascule_weights"), 0u);
}

TEST(FrozenMemoryTest, APeersMemoryThatCouldStillChangeIsNotMapped) {
  UniqueFd loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.get(), kBytes), 0);
  EXPECT_EQ(MapFrozen(loose, kBytes).status().reason(), "bad_object");
  ASSERT_EQ(fcntl(loose.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_EQ(MapFrozen(loose, kBytes).status().reason(), "bad_object");
  ASSERT_EQ(fcntl(loose.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL), 0);
  EXPECT_EQ(MapFrozen(loose, kBytes + 1).status().reason(), "bad_object") << "a longer mapping would fault";
  EXPECT_TRUE(MapFrozen(loose, kBytes).ok());

  const UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(MapFrozen(file, kBytes).status().reason(), "bad_object");
  EXPECT_EQ(MapFrozen(UniqueFd(), kBytes).status().reason(), "bad_object");
}

TEST(FrozenMemoryTest, MemoryThatTheMachineDoesNotHaveIsAnErrorWithItsBytes) {
  const Status status = FreezableMemory().Allocate(std::size_t{1} << 50).status();

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.reason(), "device_memory");
  EXPECT_NE(status.message().find(std::to_string(std::size_t{1} << 50)), std::string::npos) << status.ToString();
}

TEST(FrozenMemoryTest, TextComesBackAsItWas) {
  const UniqueFd fd = FrozenText("a manifest").value();

  EXPECT_EQ(ReadFrozenText(fd, 10).value(), "a manifest");
  EXPECT_EQ(ReadFrozenText(fd, 11).status().reason(), "bad_object");
}

TEST(FrozenMemoryTest, ARankWithoutTensorsIsAnObjectWithoutBytes) {
  const auto buffer = FreezableMemory().Allocate(0).value();

  ASSERT_TRUE(buffer->Freeze().ok());

  EXPECT_TRUE(MapFrozen(UniqueFd(dup(buffer->shared_fd())), 0).value()->bytes().empty());
}

}  // namespace
}  // namespace bascule
