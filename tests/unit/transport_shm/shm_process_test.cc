// Two processes: what is left when one is killed, and who is let in.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "bridge/transport/shm/dialer.h"
#include "bridge/transport/shm/listener.h"
#include "bridge/transport/shm/messages.h"
#include "bridge/transport/shm/runtime_directory.h"
#include "tests/support/process_census.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

constexpr uid_t kNobody = 65534;
constexpr RouteHello kHello{.connection = 1, .route = {0, 0}, .frame_bytes = 1 << 20, .credits = 4};

Deadline Soon() { return Deadline::After(Clock::Real(), std::chrono::seconds(30)); }

// A child process that runs `body` and then waits to be killed; it is killed and reaped at the latest here.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(fork()) {
    if (pid_ != 0) return;
    body();
    while (true) pause();
  }
  ~Child() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

// C-091.
TEST(ShmProcessTest, AKilledSenderIsLostAtOnceAndItsArenaGoesWithTheRoute) {
  const TempDirectory temp;
  const TransportEndpoint endpoint{TransportKind::kShm, temp.File("engine.sock")};
  const std::size_t descriptors = OpenDescriptors();
  Child trainer([&] {
    ShmDialer dialer;
    if (!Eventually([&] { return dialer.CanReach(endpoint); }, Soon())) _exit(1);
    Result<std::unique_ptr<BucketSender>> sender = Status::Internal("none");
    Eventually([&] { return (sender = dialer.Dial(endpoint, kHello, Soon())).ok(); }, Soon());
    for (int i = 0; i < 2; ++i) {
      std::ranges::fill((*sender)->Acquire(), std::byte{7});
      if (!(*sender)->Send(1 << 20).ok()) _exit(1);
    }
    while (true) pause();
  });
  {
    auto listener = ShmListener::Create(endpoint.address);
    ASSERT_TRUE(listener.ok()) << listener.status().ToString();
    (*listener)->Expect(1);
    const auto receiver = (*listener)->Accept(1, Route{0, 0}, Soon());
    ASSERT_TRUE(receiver.ok()) << receiver.status().ToString();
    const Result<ReceivedFrame> frame = (*receiver)->Receive(Soon());
    ASSERT_TRUE(frame.ok());
    ASSERT_TRUE((*receiver)->Receive(Soon()).ok());
    EXPECT_EQ(MappingsOf("memfd:bascule"), 1U);

    trainer.Kill();

    EXPECT_EQ((*receiver)->Receive(Soon()).status().reason(), "peer_lost");
    EXPECT_EQ((*receiver)->Acknowledge(*frame, BucketAck{}).reason(), "peer_lost");
    EXPECT_EQ(frame->bytes.back(), std::byte{7}) << "the mapping outlives its maker";
  }
  EXPECT_EQ(MappingsOf("memfd:bascule"), 0U);
  EXPECT_EQ(OpenDescriptors(), descriptors);
}

TEST(ShmProcessTest, AKilledEngineIsLostAtOnceAndItsSocketIsReplaced) {
  const TempDirectory temp;
  const TransportEndpoint endpoint{TransportKind::kShm, temp.File("engine.sock")};
  const std::size_t descriptors = OpenDescriptors();
  Child engine([&] {
    auto listener = ShmListener::Create(endpoint.address).value();
    listener->Expect(1);
    const auto receiver = listener->Accept(1, Route{0, 0}, Soon()).value();
    (void)receiver->Receive(Soon());
    while (true) pause();
  });
  {
    ShmDialer dialer;
    Result<std::unique_ptr<BucketSender>> sender = Status::Internal("none");
    ASSERT_TRUE(Eventually([&] { return (sender = dialer.Dial(endpoint, kHello, Soon())).ok(); }, Soon()));
    (*sender)->Acquire();
    ASSERT_TRUE((*sender)->Send(100).ok());

    engine.Kill();

    EXPECT_EQ((*sender)->NextAck(Soon()).status().reason(), "peer_lost");
    (*sender)->Acquire();
    EXPECT_EQ((*sender)->Send(100).reason(), "peer_lost");
    EXPECT_EQ(dialer.Dial(endpoint, kHello, Soon()).status().reason(), "peer_unreachable");
    EXPECT_TRUE(ShmListener::Create(endpoint.address).ok()) << "the dead engine's socket file is no obstacle";
  }
  EXPECT_EQ(MappingsOf("memfd:bascule"), 0U);
  EXPECT_EQ(OpenDescriptors(), descriptors);
}

TEST(ShmProcessTest, AnEngineThatIsAnotherUsersIsNotTrusted) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to run a process as another user";
  const TempDirectory temp;
  // Other users' sockets are where other users can make them.
  ASSERT_EQ(chmod(temp.path().c_str(), 0777), 0);
  const std::string path = temp.File("engine.sock");
  Child stranger([&] {
    if (setuid(kNobody) != 0) _exit(1);
    const int listening = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const sockaddr_un address = SocketAddress(path);
    if (bind(listening, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) _exit(1);
    if (listen(listening, 1) != 0) _exit(1);
    while (true) pause();
  });
  ShmDialer dialer;
  Status status = Status::Unavailable("peer_unreachable");

  ASSERT_TRUE(Eventually(
      [&] {
        status = dialer.Dial({TransportKind::kShm, path}, kHello, Soon()).status();
        return status.reason() != "peer_unreachable";
      },
      Soon()));

  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(status.reason(), "peer_credentials");
  EXPECT_FALSE(dialer.CanReach({TransportKind::kShm, path}));
}

TEST(ShmProcessTest, ASenderThatIsAnotherUserIsNotLetIn) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to run a process as another user";
  const TempDirectory temp;
  auto listener = ShmListener::Create(temp.File("engine.sock")).value();
  listener->Expect(1);
  // The directory would keep the stranger out; open it, so that the listener itself has to.
  ASSERT_EQ(chmod(temp.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(temp.File("engine.sock").c_str(), 0777), 0);
  int report[2];
  ASSERT_EQ(pipe(report), 0);

  const Child stranger([&] {
    if (setuid(kNobody) != 0) _exit(1);
    const int caller = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const sockaddr_un address = SocketAddress(listener->endpoint().address);
    if (connect(caller, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) _exit(1);
    ShmReply reply;
    if (recv(caller, &reply, sizeof reply, 0) != sizeof reply) _exit(1);
    if (write(report[1], &reply, sizeof reply) != sizeof reply) _exit(1);
  });
  close(report[1]);
  ShmReply reply;
  const ssize_t got = read(report[0], &reply, sizeof reply);
  close(report[0]);

  ASSERT_EQ(got, static_cast<ssize_t>(sizeof reply));
  EXPECT_EQ(FromShm(reply).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(FromShm(reply).reason(), "peer_credentials");
}

}  // namespace
}  // namespace bascule
