// Who is not a good engine, or not a good daemon.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bridge/transport/shm/runtime_directory.h"
#include "engine_side/cache_daemon/frozen_memory.h"
#include "tests/support/process_census.h"
#include "tests/unit/cache_daemon/host.h"

namespace bascule {
namespace {

template <typename Message>
Result<Message> Read(MessageSocket& socket) {
  Message message;
  RETURN_IF_ERROR(socket.Receive(std::as_writable_bytes(std::span(&message, 1)),
                                 Deadline::After(Clock::Real(), std::chrono::seconds(60)), Clock::Real()));
  return message;
}

class HostileEngineTest : public HostTest {
 protected:
  void SetUp() override {
    StartDaemon();
    cache_->Publish(3);
    ASSERT_TRUE(Eventually([this] { return daemon_->status().phase == CachePhase::kHolding; }, Soon()));
  }
  MessageSocket Call() { return MessageSocket::Connect(socket_, Soon(), Clock::Real()).value(); }
  void ExpectHungUp(MessageSocket& socket) {
    std::vector<std::byte> message(sizeof(CacheVersion));
    EXPECT_EQ(socket.Receive(message, Soon(), Clock::Real()).reason(), "peer_lost");
  }
  // Everybody else is served as ever.
  void ExpectServing() {
    const Engine engine = Attached();
    EXPECT_TRUE(engine.attached.ok()) << engine.attached.status().ToString();
  }
};

TEST_F(HostileEngineTest, CallersThatSaySomethingElseThanAHelloLoseTheirPlace) {
  for (const std::size_t bytes : {std::size_t{1}, sizeof(CacheHello) - 1, sizeof(CacheHello) + 1, std::size_t{60000}}) {
    MessageSocket socket = Call();
    ASSERT_TRUE(socket.Send(std::vector<std::byte>(bytes)).ok());
    ExpectHungUp(socket);
  }
  MessageSocket other = Call();
  ASSERT_TRUE(other.Send(BytesOf(CacheHello{.protocol = 99})).ok());
  EXPECT_EQ(CheckWelcome(Read<CacheWelcome>(other).value()).reason(), "cache_protocol");
  ExpectHungUp(other);
  ExpectServing();
}

TEST_F(HostileEngineTest, CallersThatSayNothingKeepNobodyElseWaiting) {
  std::vector<MessageSocket> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(Call());

  ExpectServing();
}

TEST_F(HostileEngineTest, AReportOnNothingEndsTheConversation) {
  MessageSocket socket = Call();
  ASSERT_TRUE(socket.Send(BytesOf(CacheHello{})).ok());
  ASSERT_TRUE(Read<CacheWelcome>(socket).ok());
  ASSERT_TRUE(socket.Send(BytesOf(EngineReport{.sequence = 77, .outcome = ToShm(OkStatus())})).ok());

  while (true) {  // what was handed out before it
    std::vector<std::byte> message(sizeof(CacheVersion));
    const Status status = socket.Receive(message, Soon(), Clock::Real());
    if (status.reason() == "peer_lost") break;
  }
  ExpectServing();
}

TEST_F(HostileEngineTest, DescriptorsThatNobodyAskedForAreNotKept) {
  const std::size_t before = OpenDescriptors();
  {
    MessageSocket socket = Call();
    const UniqueFd unwanted(open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (int i = 0; i < 3; ++i) (void)socket.Send(BytesOf(CacheHello{}), unwanted.get());
  }
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= before; }, Soon()));
  ExpectServing();
}

TEST_F(HostileEngineTest, AnEngineThatNeverReportsIsNotHandedMoreAndDelaysNobody) {
  MessageSocket socket = Call();
  ASSERT_TRUE(socket.Send(BytesOf(CacheHello{})).ok());
  Engine engine = Attached();

  for (const std::uint64_t number : {4, 5, 6}) cache_->Publish(number);
  engine.replica->AwaitNumber(6);

  ASSERT_TRUE(Read<CacheWelcome>(socket).ok());
  EXPECT_EQ(Read<CacheVersion>(socket)->number, 3u);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(Read<CacheRank>(socket).ok());
  std::vector<std::byte> message(sizeof(CacheVersion));
  EXPECT_EQ(socket.Receive(message, Deadline::At(Clock::Real().Now()), Clock::Real()).reason(), "deadline");
}

// A daemon that the test plays.
class HostileDaemonTest : public HostTest {
 protected:
  void SetUp() override { listening_ = ListenAtChosenPath(socket_, Clock::Real()).value(); }
  // Runs `play` against an engine that attaches; what the engine says of it.
  Status AttachTo(const std::function<void(MessageSocket&)>& play) {
    Worker daemon("played", [&](std::stop_token) {
      const Deadline deadline = Soon();
      UniqueFd fd;
      while (!fd.valid() && !deadline.Passed(Clock::Real()))
        fd = UniqueFd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      MessageSocket socket = MessageSocket::Create(std::move(fd)).value();
      ASSERT_TRUE(Read<CacheHello>(socket).ok());
      play(socket);
    });
    const Engine engine = Attached();
    EXPECT_FALSE(engine.replica->live());
    return engine.attached.status();
  }
  static void Welcome(MessageSocket& socket, CacheWelcome welcome = {.outcome = ToShm(OkStatus()), .phase = 2}) {
    (void)socket.Send(BytesOf(welcome));
  }

  UniqueFd listening_;
};

TEST_F(HostileDaemonTest, ADaemonThatBreaksTheProtocolIsAnErrorByName) {
  EXPECT_EQ(AttachTo([](MessageSocket&) {}).reason(), "peer_lost");
  EXPECT_EQ(AttachTo([](MessageSocket& socket) { (void)socket.Send(std::vector<std::byte>(9)); }).reason(),
            "bad_message");
  EXPECT_EQ(
      AttachTo([](MessageSocket& socket) { Welcome(socket, {.outcome = ToShm(OkStatus()), .protocol = 7}); }).reason(),
      "cache_protocol");
  EXPECT_EQ(
      AttachTo([](MessageSocket& socket) { Welcome(socket, {.outcome = ToShm(OkStatus()), .phase = 99}); }).reason(),
      "bad_message");
  const auto hand_out = [](CacheVersion version, int fd) {
    return [version, fd](MessageSocket& socket) {
      Welcome(socket);
      (void)socket.Send(BytesOf(version), fd);
      (void)socket.Send(BytesOf(CacheRank{.sequence = 1, .rank = 0, .bytes = 4}));
    };
  };
  const UniqueFd text = FrozenText("{}").value();
  EXPECT_EQ(AttachTo(hand_out({.sequence = 1, .manifest_bytes = 2, .rank_count = 0}, text.get())).reason(),
            "bad_message");
  EXPECT_EQ(AttachTo(hand_out({.sequence = 1, .manifest_bytes = -1, .rank_count = 1}, text.get())).reason(),
            "bad_message");
  EXPECT_EQ(AttachTo(hand_out({.sequence = 1, .manifest_bytes = 2, .rank_count = 1, .change = 9}, text.get())).reason(),
            "bad_message");
  EXPECT_EQ(AttachTo(hand_out({.sequence = 2, .manifest_bytes = 2, .rank_count = 1}, text.get())).reason(),
            "bad_message");
  EXPECT_EQ(AttachTo(hand_out({.sequence = 1, .manifest_bytes = 2, .rank_count = 1}, text.get())).reason(),
            "artifact_altered");
  EXPECT_EQ(AttachTo(hand_out({.sequence = 1, .manifest_bytes = 3, .rank_count = 1}, text.get())).reason(),
            "bad_object");
  EXPECT_EQ(AttachTo(hand_out({.sequence = 1, .manifest_bytes = 2, .rank_count = 1}, -1)).reason(), "bad_object");
}

// C-122.
TEST_F(HostTest, OnlyASocketThatIsNotThereCountsAsAbsent) {
  const Engine absent = Attached();
  EXPECT_EQ(absent.attached.status().reason(), "daemon_absent");

  { const UniqueFd dead = ListenAtChosenPath(socket_, Clock::Real()).value(); }  // as kill -9 leaves it
  EXPECT_EQ(Attached().attached.status().reason(), "peer_unreachable");
  unlink(socket_.c_str());
  directory_.Write("cache.sock", "no socket");
  EXPECT_EQ(Attached().attached.status().reason(), "peer_unreachable");
  EXPECT_EQ(Attached({.socket = std::string(120, 'x')}).attached.status().reason(), "bad_socket_path");
}

// C-122, C-124.
TEST_F(HostTest, ADeadDaemonsSocketIsReplacedAndALivingOnesIsNot) {
  { const UniqueFd dead = ListenAtChosenPath(socket_, Clock::Real()).value(); }
  StartDaemon();
  cache_->Publish(1);
  EXPECT_TRUE(Attached().attached.ok());

  const auto second = CacheDaemon::Create({.socket = socket_}, cache_->receiver());

  EXPECT_EQ(second.status().reason(), "address_in_use");
  struct stat found {};
  ASSERT_EQ(stat(socket_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

// C-124.
TEST_F(HostTest, ADirectoryInWhichOthersMayWriteIsNoPlaceForASocket) {
  const std::string open = directory_.File("open");
  ASSERT_EQ(mkdir(open.c_str(), 0777), 0);
  ASSERT_EQ(chmod(open.c_str(), 0777), 0);

  EXPECT_EQ(ListenAtChosenPath(open + "/s.sock", Clock::Real()).status().reason(), "runtime_directory");
  ASSERT_EQ(chmod(open.c_str(), 0755), 0);
  const std::string dead = open + "/another.sock";
  { const UniqueFd other = ListenAtChosenPath(dead, Clock::Real()).value(); }
  EXPECT_TRUE(ListenAtChosenPath(open + "/s.sock", Clock::Real()).ok());
  EXPECT_EQ(access(dead.c_str(), F_OK), 0) << "what else lies there is not the daemon's to remove";
}

}  // namespace
}  // namespace bascule
