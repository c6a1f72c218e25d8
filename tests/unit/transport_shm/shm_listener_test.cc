// Where an shm listener agrees to live, and what its arena forbids.
#include "bridge/transport/shm/listener.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bridge/transport/shm/dialer.h"
#include "bridge/transport/shm/runtime_directory.h"
#include "bridge/transport/shm/sealed_arena.h"
#include "tests/support/process_census.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

constexpr RouteHello kHello{.connection = 1, .route = {0, 0}, .frame_bytes = 64, .credits = 1};

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }

// A socket file whose listener is gone without a trace, as after kill -9.
void LeaveDeadSocket(const std::string& path) {
  const UniqueFd dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = SocketAddress(path);
  ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
}

TEST(ShmListenerTest, ItMakesItsDirectoryForItsUserAlone) {
  const TempDirectory temp;

  const auto listener = ShmListener::Create(temp.File("run/engine.sock"));

  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  struct stat found {};
  ASSERT_EQ(stat(temp.File("run").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0700U);
}

TEST(ShmListenerTest, ADirectoryThatOthersMayEnterIsRefused) {
  const TempDirectory temp;
  std::filesystem::create_directory(temp.File("open"));
  ASSERT_EQ(chmod(temp.File("open").c_str(), 0750), 0);
  std::filesystem::create_directory_symlink(temp.path(), temp.File("link"));

  EXPECT_EQ(ShmListener::Create(temp.File("open/engine.sock")).status().reason(), "runtime_directory");
  EXPECT_EQ(ShmListener::Create(temp.File("link/engine.sock")).status().reason(), "runtime_directory");
  EXPECT_EQ(ShmListener::Create(temp.File("no/such/engine.sock")).status().reason(), "runtime_directory");
}

TEST(ShmListenerTest, ADeadSocketIsReplaced) {
  const TempDirectory temp;
  LeaveDeadSocket(temp.File("engine.sock"));

  const auto listener = ShmListener::Create(temp.File("engine.sock"));

  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  EXPECT_EQ(ShmDialer().Dial((*listener)->endpoint(), kHello, Soon()).status().reason(), "unknown_connection");
}

// C-100.
TEST(ShmListenerTest, WhatKilledProcessesLeftInItsDirectoryGoesAndEverythingElseStays) {
  const TempDirectory temp;
  const auto living = ShmListener::Create(temp.File("engine-1.sock"));
  ASSERT_TRUE(living.ok());
  LeaveDeadSocket(temp.File("engine-2.sock"));
  LeaveDeadSocket(temp.File("engine-3.sock"));
  std::ofstream(temp.File("notes")) << "precious";

  const auto listener = ShmListener::Create(temp.File("engine-4.sock"));

  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(temp.path())) left.push_back(entry.path().filename());
  EXPECT_THAT(left, testing::UnorderedElementsAre("engine-1.sock", "engine-4.sock", "notes"));
  EXPECT_EQ(ShmDialer().Dial((*living)->endpoint(), kHello, Soon()).status().reason(), "unknown_connection");
}

TEST(ShmListenerTest, ASocketThatIsListenedAtIsLeftAlone) {
  const TempDirectory temp;
  const auto first = ShmListener::Create(temp.File("engine.sock"));
  ASSERT_TRUE(first.ok());

  const Status second = ShmListener::Create(temp.File("engine.sock")).status();

  EXPECT_EQ(second.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(second.reason(), "address_in_use");
  (*first)->Expect(1);
  EXPECT_TRUE(ShmDialer().Dial((*first)->endpoint(), kHello, Soon()).ok());
}

TEST(ShmListenerTest, AFileInItsPlaceIsLeftAlone) {
  const TempDirectory temp;
  std::ofstream(temp.File("engine.sock")) << "precious";

  EXPECT_EQ(ShmListener::Create(temp.File("engine.sock")).status().reason(), "address_in_use");

  EXPECT_EQ(std::filesystem::file_size(temp.File("engine.sock")), 8U);
}

TEST(ShmListenerTest, ItTakesItsSocketFileAway) {
  const TempDirectory temp;
  { const auto listener = ShmListener::Create(temp.File("engine.sock")); }

  EXPECT_TRUE(std::filesystem::is_empty(temp.path()));
}

TEST(ShmListenerTest, PathsThatASocketAddressCannotHoldAreRefused) {
  const TempDirectory temp;
  const std::string longest = temp.File(std::string(107 - temp.path().size() - 1, 'x'));
  ASSERT_EQ(longest.size(), 107U);

  EXPECT_TRUE(ShmListener::Create(longest).ok());
  EXPECT_EQ(ShmListener::Create(longest + "x").status().reason(), "bad_socket_path");
  EXPECT_EQ(ShmListener::Create("relative/engine.sock").status().reason(), "bad_socket_path");
  EXPECT_EQ(ShmListener::Create("").status().reason(), "bad_socket_path");
  EXPECT_FALSE(ShmDialer().CanReach({TransportKind::kShm, longest + "x"}));
  EXPECT_EQ(ShmDialer().Dial({TransportKind::kShm, longest + "x"}, kHello, Soon()).status().reason(),
            "peer_unreachable");
}

TEST(ShmListenerTest, TheUsualDirectoryFollowsTheEnvironment) {
  const char* const before = std::getenv("XDG_RUNTIME_DIR");
  const std::string kept = before == nullptr ? "" : before;

  setenv("XDG_RUNTIME_DIR", "/run/user/7", 1);
  EXPECT_EQ(DefaultRuntimeDirectory(), "/run/user/7/bascule");
  setenv("XDG_RUNTIME_DIR", "not/absolute", 1);
  EXPECT_EQ(DefaultRuntimeDirectory(), "/tmp/bascule-" + std::to_string(geteuid()));
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(DefaultRuntimeDirectory(), "/tmp/bascule-" + std::to_string(geteuid()));

  if (before != nullptr) setenv("XDG_RUNTIME_DIR", kept.c_str(), 1);
}

TEST(SealedArenaTest, ItsMakerWritesAndItsReaderSeesButCannotWriteOrResize) {
  const Result<SealedArena> arena = MakeSealedArena(/*frame_bytes=*/5000, /*credits=*/3);
  ASSERT_TRUE(arena.ok()) << arena.status().ToString();
  const Result<FrameArena> reader = MapSealedArena(arena->fd, 5000, 3);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();

  arena->frames.frame(2)[4999] = std::byte{42};

  EXPECT_EQ(reader->frame(2)[4999], std::byte{42});
  const int fd = arena->fd.get();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd, 4096), -1);
  EXPECT_EQ(ftruncate(fd, 1 << 20), -1);
  EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
}

// C-100.
TEST(SealedArenaTest, MoreThanTheMachineHasIsAnErrorAndNotAKill) {
  // Should the check fail, this limit stops the kernel from handing out the machine.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit limited{1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limited), 0);
  signal(SIGXFSZ, SIG_IGN);

  const Status status = MakeSealedArena(std::int64_t{1} << 50, /*credits=*/16).status();

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.reason(), "frame_memory");
  EXPECT_THAT(status.message(), testing::HasSubstr("available="));
  EXPECT_EQ(MappingsOf("memfd:bascule"), 0U);
  signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

}  // namespace
}  // namespace bascule
