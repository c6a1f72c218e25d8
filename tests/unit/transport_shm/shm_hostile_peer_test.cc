// A peer that speaks the socket's protocol by hand, and badly.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/worker.h"
#include "bridge/transport/shm/dialer.h"
#include "bridge/transport/shm/listener.h"
#include "bridge/transport/shm/messages.h"
#include "bridge/transport/shm/runtime_directory.h"
#include "bridge/transport/shm/sealed_arena.h"
#include "tests/support/process_census.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

constexpr std::int64_t kFrameBytes = 4096;
constexpr std::int32_t kCredits = 2;

constexpr RouteHello kHello{.connection = 1, .route = {0, 0}, .frame_bytes = kFrameBytes, .credits = kCredits};

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }

template <typename Message>
Result<Message> Read(MessageSocket& socket) {
  Message message;
  RETURN_IF_ERROR(socket.Receive(std::as_writable_bytes(std::span(&message, 1)), Soon(), Clock::Real()));
  return message;
}

// A memfd with the seals and size that a test wants, and not those that it should have.
UniqueFd OddArena(std::int64_t bytes, int seals) {
  UniqueFd fd(memfd_create("odd", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

class ShmHostileSenderTest : public testing::Test {
 protected:
  void SetUp() override { listener_->Expect(1); }

  MessageSocket Call() {
    UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const sockaddr_un address = SocketAddress(listener_->endpoint().address);
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return MessageSocket::Create(std::move(fd)).value();
  }

  Status SayHello(const ShmHello& hello, int fd) {
    MessageSocket socket = Call();
    RETURN_IF_ERROR(socket.Send(BytesOf(hello), fd));
    ASSIGN_OR_RETURN(const ShmReply reply, Read<ShmReply>(socket));
    return FromShm(reply);
  }

  // A route that is opened as it should be; what follows is up to the test.
  void OpenRoute() {
    SealedArena arena = MakeSealedArena(kFrameBytes, kCredits).value();
    ASSERT_TRUE(sender_.Send(BytesOf(kGoodHello), arena.fd.get()).ok());
    ASSERT_TRUE(FromShm(Read<ShmReply>(sender_).value()).ok());
    receiver_ = listener_->Accept(1, Route{0, 0}, Soon()).value();
  }

  void ExpectBroken() {
    for (int again = 0; again < 2; ++again) {
      const Status status = receiver_->Receive(Soon()).status();
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
      EXPECT_EQ(status.reason(), "bad_frame");
    }
  }

  static constexpr ShmHello kGoodHello{.connection = 1, .frame_bytes = kFrameBytes, .credits = kCredits};
  static constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  static constexpr std::int64_t kArenaBytes = kFrameBytes * kCredits;

  TempDirectory temp_;
  std::unique_ptr<ShmListener> listener_ = ShmListener::Create(temp_.File("engine.sock")).value();
  MessageSocket sender_ = Call();
  std::unique_ptr<BucketReceiver> receiver_;
};

TEST_F(ShmHostileSenderTest, AnArenaWithoutAnyOneOfTheSealsIsRefused) {
  for (const int missing : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE, F_SEAL_SEAL}) {
    const UniqueFd fd = OddArena(kArenaBytes, kAllSeals & ~missing);

    EXPECT_EQ(SayHello(kGoodHello, fd.get()).reason(), "bad_arena") << missing;
  }
  EXPECT_EQ(SayHello(kGoodHello, OddArena(kArenaBytes, 0).get()).reason(), "bad_arena");
  EXPECT_TRUE(SayHello(kGoodHello, OddArena(kArenaBytes, kAllSeals).get()).ok()) << "with all of them it is taken";
}

TEST_F(ShmHostileSenderTest, AnArenaOfAnotherSizeIsRefused) {
  for (const std::int64_t bytes : {std::int64_t{0}, kArenaBytes - 1, kArenaBytes + 1, kArenaBytes / 2}) {
    EXPECT_EQ(SayHello(kGoodHello, OddArena(bytes, kAllSeals).get()).reason(), "bad_arena") << bytes;
  }
}

TEST_F(ShmHostileSenderTest, AHelloWithoutAnArenaOrWithSomethingElseIsRefused) {
  const UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));

  EXPECT_EQ(SayHello(kGoodHello, -1).reason(), "bad_arena");
  EXPECT_EQ(SayHello(kGoodHello, file.get()).reason(), "bad_arena");
}

TEST_F(ShmHostileSenderTest, HostileNumbersInAHelloAreRefused) {
  const UniqueFd fd = OddArena(kArenaBytes, kAllSeals);
  std::vector<ShmHello> bad(7, kGoodHello);
  bad[0].magic ^= 1;
  bad[1].version += 1;
  bad[2].frame_bytes = -1;
  bad[3].frame_bytes = std::int64_t{1} << 62;
  bad[4].credits = std::int64_t{1} << 32 | 1;
  bad[5].credits = 0;
  bad[6].engine_rank = -1;

  for (const ShmHello& hello : bad) EXPECT_EQ(SayHello(hello, fd.get()).reason(), "bad_route");
}

TEST_F(ShmHostileSenderTest, AHelloOfAnotherLengthIsRefused) {
  for (const std::size_t length : {std::size_t{1}, sizeof(ShmHello) - 1, sizeof(ShmHello) + 1, std::size_t{4000}}) {
    MessageSocket socket = Call();
    ASSERT_TRUE(socket.Send(std::vector<std::byte>(length)).ok());

    EXPECT_EQ(FromShm(Read<ShmReply>(socket).value()).reason(), "bad_message") << length;
  }
}

TEST_F(ShmHostileSenderTest, SilentCallersDoNotKeepOthersOut) {
  std::vector<MessageSocket> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(Call());

  EXPECT_TRUE(ShmDialer().Dial(listener_->endpoint(), kHello, Soon()).ok());
}

TEST_F(ShmHostileSenderTest, RefusedCallersLeaveNoDescriptorBehind) {
  // Once one call is answered, the fixture's own call, which is older, has been taken. The listener may still hold the
  // answered one when the descriptors are counted, so the count is a bound: each call that leaks would exceed it.
  ASSERT_EQ(SayHello(kGoodHello, -1).reason(), "bad_arena");
  const std::size_t descriptors = OpenDescriptors();
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(SayHello(kGoodHello, OddArena(kArenaBytes, 0).get()).reason(), "bad_arena");
    Call();
  }

  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= descriptors; }, Soon()));
}

// Two descriptors fit into the space that alignment leaves behind one.
TEST_F(ShmHostileSenderTest, ASecondDescriptorIsNotTaken) {
  SealedArena arena = MakeSealedArena(kFrameBytes, kCredits).value();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const int fds[2] = {arena.fd.get(), writing.get()};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof fds)] = {};
  ShmHello hello = kGoodHello;
  iovec part{&hello, sizeof hello};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = space;
  header.msg_controllen = sizeof space;
  cmsghdr* const control = CMSG_FIRSTHDR(&header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof fds);
  std::memcpy(CMSG_DATA(control), fds, sizeof fds);
  ASSERT_EQ(sendmsg(sender_.fd(), &header, 0), static_cast<ssize_t>(sizeof hello));
  ASSERT_TRUE(Read<ShmReply>(sender_).ok());

  // Once our own writing end is closed too, the pipe reports that none is left.
  writing = UniqueFd();
  { const UniqueFd closing = std::move(writing); }
  pollfd hangup{reading.get(), POLLIN, 0};
  EXPECT_EQ(poll(&hangup, 1, 30'000), 1);
  EXPECT_NE(hangup.revents & POLLHUP, 0);
}

TEST_F(ShmHostileSenderTest, AFrameOutsideTheArenaEndsTheRoute) {
  OpenRoute();
  ASSERT_TRUE(sender_.Send(BytesOf(ShmFrame{.index = kCredits, .bytes = 1})).ok());
  ExpectBroken();
}

TEST_F(ShmHostileSenderTest, AFrameIndexBeyond32BitsEndsTheRoute) {
  OpenRoute();
  ASSERT_TRUE(sender_.Send(BytesOf(ShmFrame{.index = std::uint64_t{1} << 32, .bytes = 1})).ok());
  ExpectBroken();
}

TEST_F(ShmHostileSenderTest, AFrameLargerThanAgreedEndsTheRoute) {
  OpenRoute();
  ASSERT_TRUE(sender_.Send(BytesOf(ShmFrame{.index = 0, .bytes = kFrameBytes + 1})).ok());
  ExpectBroken();
}

TEST_F(ShmHostileSenderTest, AFrameAnnouncedTwiceEndsTheRoute) {
  OpenRoute();
  for (int twice = 0; twice < 2; ++twice) ASSERT_TRUE(sender_.Send(BytesOf(ShmFrame{.index = 1, .bytes = 8})).ok());

  EXPECT_TRUE(receiver_->Receive(Soon()).ok());
  ExpectBroken();
}

TEST_F(ShmHostileSenderTest, AMessageOfAnotherLengthEndsTheRoute) {
  OpenRoute();
  ASSERT_TRUE(sender_.Send(std::vector<std::byte>(sizeof(ShmFrame) - 1)).ok());
  ExpectBroken();
}

// An engine that answers by hand.
class ShmHostileReceiverTest : public testing::Test {
 protected:
  // Dials the listening socket, answers with `reply`, and keeps both ends.
  Status Dial(const ShmReply& reply) {
    Result<std::unique_ptr<BucketSender>> dialled = Status::Internal("not_dialled");
    Worker dialling("dial", [&](std::stop_token) {
      dialled = ShmDialer().Dial({TransportKind::kShm, path_}, kHello, Soon());
    });
    pollfd caller{listening_.get(), POLLIN, 0};
    if (poll(&caller, 1, 30'000) != 1) return Status::Internal("no_caller");
    engine_.push_back(
        MessageSocket::Create(UniqueFd(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC))).value());
    RETURN_IF_ERROR(Read<ShmHello>(engine_.back()).status());
    RETURN_IF_ERROR(engine_.back().Send(BytesOf(reply)));
    dialling.Join();
    if (dialled.ok()) sender_ = std::move(dialled).value();
    return dialled.status();
  }

  void ExpectBroken() {
    for (int again = 0; again < 2; ++again) {
      const Status status = sender_->NextAck(Soon()).status();
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
      EXPECT_EQ(status.reason(), "bad_ack");
    }
  }

  TempDirectory temp_;
  const std::string path_ = temp_.File("engine.sock");
  UniqueFd listening_ = ListenAt(path_, Clock::Real()).value();
  std::vector<MessageSocket> engine_;
  std::unique_ptr<BucketSender> sender_;
};

TEST_F(ShmHostileReceiverTest, AnAcknowledgementOfAFrameThatIsNotOutEndsTheRoute) {
  ASSERT_TRUE(Dial(ShmReply{}).ok());
  ASSERT_TRUE(engine_.back().Send(BytesOf(ShmAck{.index = 0})).ok());
  ExpectBroken();
}

TEST_F(ShmHostileReceiverTest, AnAcknowledgementOutsideTheArenaEndsTheRoute) {
  ASSERT_TRUE(Dial(ShmReply{}).ok());
  sender_->Acquire();
  ASSERT_TRUE(sender_->Send(1).ok());
  ASSERT_TRUE(engine_.back().Send(BytesOf(ShmAck{.index = 0xffffffff})).ok());
  ExpectBroken();
}

TEST_F(ShmHostileReceiverTest, AVerdictThatDoesNotExistEndsTheRoute) {
  ASSERT_TRUE(Dial(ShmReply{}).ok());
  sender_->Acquire();
  ASSERT_TRUE(sender_->Send(1).ok());
  ASSERT_TRUE(engine_.back().Send(BytesOf(ShmAck{.index = 0, .verdict = 4})).ok());
  ExpectBroken();
}

TEST_F(ShmHostileReceiverTest, AReplyWithoutAnEndOfTextOrWithAnUnknownCodeIsReadWithinBounds) {
  ShmReply unknown;
  unknown.code = 999;
  ShmReply endless = ToShm(Status::Unavailable("peer_lost"));
  endless.reason.fill('x');
  endless.message.fill('y');

  EXPECT_EQ(Dial(unknown).reason(), "bad_message");
  const Status status = Dial(endless);
  EXPECT_EQ(status.reason(), std::string(32, 'x'));
  EXPECT_EQ(status.message(), std::string(216, 'y'));
}

TEST_F(ShmHostileReceiverTest, AnEngineThatNeverAnswersIsADeadline) {
  const Status status =
      ShmDialer()
          .Dial({TransportKind::kShm, path_}, kHello, Deadline::After(Clock::Real(), std::chrono::milliseconds(5)))
          .status();

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(MappingsOf("memfd:bascule"), 0U);
}

}  // namespace
}  // namespace bascule
