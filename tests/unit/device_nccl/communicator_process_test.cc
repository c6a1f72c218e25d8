// Two processes, one rank each.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/child_process.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_nccl/control.h"
#include "tests/unit/device_nccl/ranks.h"

namespace bascule {
namespace {

constexpr std::size_t kBytes = 50'000;

// Holds an id to be read, as a control plane would have it.
class IdPipe {
 public:
  explicit IdPipe(const CommunicatorId& id) {
    CHECK(pipe2(ends_, O_CLOEXEC) == 0);
    CHECK(write(ends_[1], id.bytes.data(), id.bytes.size()) == static_cast<ssize_t>(id.bytes.size()));
  }
  IdPipe(const IdPipe&) = delete;
  IdPipe& operator=(const IdPipe&) = delete;
  ~IdPipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  int read_end() const { return ends_[0]; }

 private:
  int ends_[2] = {};
};

// The other process, told the id.
class Peer : private IdPipe, public ChildProcess {
 public:
  Peer(const char* role, const CommunicatorId& id)
      : IdPipe(id), ChildProcess({COMMUNICATOR_PEER, role}, [this] { dup2(read_end(), STDIN_FILENO); }) {}
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
