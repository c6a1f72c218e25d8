// Two processes, one rank each.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_nccl/control.h"
#include "tests/unit/device_nccl/ranks.h"

namespace bascule {
namespace {

constexpr std::size_t kBytes = 50'000;

// The other process. It is told the id as a control plane would: by somebody who has it.
class Peer {
 public:
  Peer(const char* role, const CommunicatorId& id) {
    int ends[2];
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    CHECK(write(ends[1], id.bytes.data(), id.bytes.size()) == static_cast<ssize_t>(id.bytes.size()));
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[0], STDIN_FILENO);
      execl(COMMUNICATOR_PEER, COMMUNICATOR_PEER, role, nullptr);
      _exit(127);
    }
    close(ends[0]);
    close(ends[1]);
  }
  ~Peer() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    (void)Wait();
  }
  int Wait() {
    int status = -1;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

 private:
  pid_t pid_ = -1;
};

class CommunicatorProcessTest : public testing::Test {
 protected:
  void Join() { rank_.communicator = Library().Join(*rank_.device, id_, 0, 2).value(); }

  Rank rank_ = MakeRank(0, kBytes);
  const CommunicatorId id_ = Library().NewId().value();
};

TEST_F(CommunicatorProcessTest, BytesGoToAnotherProcessAndComeBack) {
  Peer peer("", id_);
  Join();
  ASSERT_TRUE(rank_.Settle().ok());
  ASSERT_TRUE(rank_.Fill(ByteOf(4)).ok());

  ASSERT_TRUE(rank_.communicator->Broadcast(rank_.memory->bytes(), 0, *rank_.stream).ok());
  ASSERT_TRUE(rank_.Settle().ok());
  ASSERT_TRUE(rank_.Fill(ByteOf(0)).ok());
  ASSERT_TRUE(rank_.communicator->Move(std::vector{rank_.From(1, 0, kBytes)}, *rank_.stream).ok());
  ASSERT_TRUE(rank_.Settle().ok());
  ASSERT_TRUE(rank_.Drain().ok());

  EXPECT_THAT(rank_.Read(), testing::Each(ByteOf(4)));
  EXPECT_TRUE(rank_.communicator->Close(Soon(), Clock::Real()).ok());
  EXPECT_EQ(peer.Wait(), 0);
}

TEST_F(CommunicatorProcessTest, AProcessThatIsKilledLeavesAMoveThatAnAbortEnds) {
  Peer peer("silent", id_);
  Join();
  ASSERT_TRUE(rank_.Settle().ok());
  ASSERT_TRUE(rank_.communicator->Move(std::vector{rank_.From(1, 0, kBytes)}, *rank_.stream).ok());
  peer.Kill();
  ASSERT_TRUE(rank_.Settle().ok()) << "NCCL does not notice";

  ASSERT_TRUE(rank_.communicator->Abort(Soon(), Clock::Real()).ok());

  EXPECT_TRUE(rank_.Drain().ok());
}

TEST_F(CommunicatorProcessTest, AProcessThatNeverJoinsIsWaitedForUntilTheDeadline) {
  Peer peer("absent", id_);
  Join();

  EXPECT_EQ(AwaitSettled(*rank_.communicator, Shortly(), Clock::Real()).reason(), "nccl_deadline");
}

}  // namespace
}  // namespace bascule
