// Two processes on one device, which they call by different ordinals.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "bridge/transport/cuda_ipc/dialer.h"
#include "bridge/transport/cuda_ipc/listener.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/support/process_census.h"
#include "tests/support/temp_directory.h"
#include "tests/unit/transport_cuda_ipc/device_frames.h"
#include "tests/unit/transport_cuda_ipc/peer.h"

namespace bascule {
namespace {

Deadline Shortly() { return Deadline::After(Clock::Real(), std::chrono::milliseconds(5)); }

class CudaIpcProcessTest : public testing::Test {
 protected:
  std::string Address() { return ToAddress({{device_.description().uuid}, directory_.File("engine.sock")}); }
  std::unique_ptr<BucketReceiver> Accept(CudaIpcListener& listener) {
    return listener.Accept(kHello.connection, kHello.route, Soon()).value();
  }
  std::unique_ptr<CudaIpcListener> Listen() {
    auto listener = CudaIpcListener::Create(directory_.File("engine.sock"), device_).value();
    listener->Expect(kHello.connection);
    return listener;
  }

  TempDirectory directory_;
  Device& device_ = FakeDevice();
  const FakeCudaCensus before_ = FakeCuda::Census();  // tests before may have left work that never ends
};

// C-091.
TEST_F(CudaIpcProcessTest, FramesOfAnotherProcessArriveWholeAndItsMemoryIsOpenedOnceAndClosed) {
  const auto listener = Listen();
  Peer trainer("send", Address(), "20");
  {
    const auto receiver = Accept(*listener);
    FrameSink sink(device_, *receiver);
    for (int number = 0; number < 20; ++number) {
      ASSERT_TRUE(sink.Take().ok());
      EXPECT_EQ(FakeCuda::Census().opened_allocations, 1);
    }
    ASSERT_TRUE(Drain(device_, sink.stream()).ok());

    EXPECT_EQ(sink.CountWrong(), 0);
  }

  EXPECT_EQ(FakeCuda::Census().opened_allocations, 0);
  EXPECT_EQ(FakeCuda::Census().events, before_.events);
  EXPECT_EQ(trainer.Wait(), 0) << "the sender frees its frames once they are closed here, and ends";
}

TEST_F(CudaIpcProcessTest, WhereTheDriverDoesNotKnowTheSizeOfImportedMemoryFramesArriveWholeAllTheSame) {
  const auto listener = Listen();
  FakeCuda::Fail("cuMemGetAddressRange", 1, cudaErrorInvalidValue);
  Peer trainer("send", Address(), "3");
  {
    const auto receiver = Accept(*listener);
    FrameSink sink(device_, *receiver);
    for (int number = 0; number < 3; ++number) ASSERT_TRUE(sink.Take().ok());
    ASSERT_TRUE(Drain(device_, sink.stream()).ok());

    EXPECT_EQ(sink.CountWrong(), 0);
    EXPECT_EQ(FakeCuda::TakeBackFaults(), 0);
  }
  EXPECT_EQ(FakeCuda::Census().opened_allocations, 0);
  EXPECT_EQ(trainer.Wait(), 0);
}

TEST_F(CudaIpcProcessTest, WhereTheDeviceIsLostWhenMemoryIsImportedNoRouteOpensAndNothingStaysOpen) {
  const auto listener = Listen();
  FakeCuda::Fail("cuMemGetAddressRange", 1, cudaErrorIllegalAddress);
  Peer trainer("send", Address(), "3");

  EXPECT_NE(trainer.Wait(), 0);

  EXPECT_EQ(FakeCuda::TakeBackFaults(), 0);
  EXPECT_EQ(FakeCuda::Census().opened_allocations, 0);
}

TEST_F(CudaIpcProcessTest, ASenderThatIsKilledBeforeItsWorkIsDoneIsLostAndHoldsUpNoStream) {
  const auto listener = Listen();
  Peer trainer("lost_send", Address());
  const auto receiver = Accept(*listener);
  EXPECT_EQ(receiver->Receive(Shortly()).status().reason(), "deadline");

  trainer.Kill();

  EXPECT_EQ(receiver->Receive(Soon()).status().reason(), "peer_lost");
  const auto stream = device_.MakeStream(StreamPriority::kNormal).value();
  EXPECT_TRUE(Drain(device_, *stream).ok());
}

// C-091.
TEST_F(CudaIpcProcessTest, AReceiverThatIsKilledWhileItReadsIsLostAndTheFramesAreFreed) {
  CudaIpcDialer dialer(device_);
  Peer engine("lost_read", Address());
  const TransportEndpoint endpoint{TransportKind::kCudaIpc, Address()};
  Result<std::unique_ptr<BucketSender>> sender = Status::Unavailable("not_yet");
  ASSERT_TRUE(Eventually([&] { return (sender = dialer.Dial(endpoint, kHello, Soon())).ok(); }, Soon()))
      << sender.status().ToString();
  {
    FrameSource source(device_, **sender);
    ASSERT_TRUE(source.Send(0).ok());
    EXPECT_EQ((*sender)->NextAck(Shortly()).status().reason(), "deadline");

    engine.Kill();

    EXPECT_EQ((*sender)->NextAck(Soon()).status().reason(), "peer_lost");
    ASSERT_TRUE(Drain(device_, source.stream()).ok());
  }
  sender->reset();
  EXPECT_EQ(FakeCuda::Census().allocations, before_.allocations);
  EXPECT_EQ(FakeCuda::Census().events, before_.events);
}

}  // namespace
}  // namespace bascule
