// A trainer and an engine in two processes, on two devices.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bridge/transport/nccl/listener.h"
#include "bridge/transport/shm/listener.h"
#include "tests/support/child_process.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/support/fake_nccl/control.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/transport_cuda_ipc/device_frames.h"

namespace bascule {
namespace {

class Trainer : public ChildProcess {
 public:
  Trainer(const std::string& address, const char* frames) : ChildProcess({NCCL_PEER, address, frames}) {}
};

class NcclProcessTest : public testing::Test {
 protected:
  NcclProcessTest() { listener_.Expect(kHello.connection); }
  std::unique_ptr<BucketReceiver> Accept() { return listener_.Accept(kHello.connection, kHello.route, Soon()).value(); }

  TempDirectory directory_;
  Device& device_ = FakeDevice(1);
  std::unique_ptr<ShmListener> carrier_ = ShmListener::Create(directory_.File("engine.sock")).value();
  NcclListener listener_{{&device_}, **LoadCommunicators(), *carrier_};
};

TEST_F(NcclProcessTest, FramesOfAnotherProcessArriveWhole) {
  Trainer trainer(listener_.endpoint().address, "20");
  const auto receiver = Accept();
  FrameSink sink(device_, *receiver);

  for (int number = 0; number < 20; ++number) ASSERT_TRUE(sink.Take().ok());

  ASSERT_TRUE(Drain(device_, sink.stream()).ok());
  EXPECT_EQ(sink.CountWrong(), 0);
  EXPECT_EQ(trainer.Wait(), 0);
}

// C-091.
TEST_F(NcclProcessTest, ATrainerThatIsKilledWhileItsFrameIsUnderWayIsLostAndEverythingComesBack) {
  (void)device_.memory().Allocate(1).value();  // what a device makes once and keeps
  const FakeCudaCensus before = FakeCuda::Census();
  Trainer trainer(listener_.endpoint().address, "lost");
  auto receiver = Accept();
  EXPECT_EQ(receiver->Receive(Deadline::After(Clock::Real(), std::chrono::milliseconds(50))).status().reason(),
            "deadline");

  trainer.Kill();

  EXPECT_EQ(receiver->Receive(Soon()).status().reason(), "peer_lost");
  receiver.reset();
  EXPECT_EQ(FakeNccl::Census().communicators, 0);
  EXPECT_EQ(FakeNccl::Census().registrations, 0);
  EXPECT_EQ(FakeCuda::Census().allocations, before.allocations);
  EXPECT_EQ(FakeCuda::Census().streams, before.streams);
}

}  // namespace
}  // namespace bascule
