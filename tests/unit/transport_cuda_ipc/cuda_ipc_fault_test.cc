// What a route does when CUDA fails, or the other end's work never ends.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "bridge/transport/cuda_ipc/dialer.h"
#include "bridge/transport/cuda_ipc/listener.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/fake_device.h"
#include "tests/support/process_census.h"
#include "tests/support/temp_directory.h"
#include "tests/support/waited_clock.h"
#include "tests/unit/transport_cuda_ipc/device_frames.h"

namespace bascule {
namespace {

class CudaIpcFaultTest : public testing::Test {
 protected:
  Status Open() {
    listener_->Expect(kHello.connection);
    ASSIGN_OR_RETURN(sender_, dialer_.Dial(listener_->endpoint(), kHello, Soon()));
    Result<std::unique_ptr<BucketReceiver>> receiver = Status::Unavailable("not_yet");
    // The listener's clock ends its wait at once, though the route is on its way.
    Eventually([&] { return (receiver = listener_->Accept(kHello.connection, kHello.route, Soon())).ok(); }, Soon());
    ASSIGN_OR_RETURN(receiver_, std::move(receiver));
    return OkStatus();
  }
  Deadline Shortly() { return Deadline::After(clock_, std::chrono::milliseconds(5)); }

  WaitedClock clock_;  // so that work which never ends is given up at once; sockets wait by the real time
  TempDirectory directory_;
  Device& device_ = FakeDevice();
  std::unique_ptr<CudaIpcListener> listener_ =
      CudaIpcListener::Create(directory_.File("engine.sock"), device_, clock_).value();
  CudaIpcDialer dialer_{device_, clock_};
  std::unique_ptr<BucketSender> sender_;
  std::unique_ptr<BucketReceiver> receiver_;
};

// C-092.
TEST_F(CudaIpcFaultTest, ARouteThatCudaCannotOpenSaysWhyLeavesNothingAndCanBeTriedAgain) {
  struct Case {
    const char* function;
    int nth;
    int error;
    const char* reason;
  };
  const Case cases[] = {{"cudaMalloc", 1, cudaErrorMemoryAllocation, "device_memory"},
                        {"cudaPointerGetAttributes", 1, cudaErrorInvalidValue, "device_error"},
                        {"cudaIpcGetMemHandle", 1, cudaErrorInvalidValue, "device_error"},
                        {"cudaEventCreateWithFlags", 3, cudaErrorMemoryAllocation, "device_memory"},  // the sender's
                        {"cudaIpcGetEventHandle", 2, cudaErrorMemoryAllocation, "device_memory"},
                        {"cudaEventCreateWithFlags", 5, cudaErrorMemoryAllocation, "device_memory"},  // the receiver's
                        {"cudaIpcGetEventHandle", 4, cudaErrorMemoryAllocation, "device_memory"}};
  ASSERT_TRUE(Open().ok());
  sender_.reset();
  receiver_.reset();
  const FakeCudaCensus before = FakeCuda::Census();
  for (const Case& fault : cases) {
    SCOPED_TRACE(fault.function);
    listener_->Forget(kHello.connection);
    FakeCuda::Fail(fault.function, fault.nth, fault.error);

    EXPECT_EQ(Open().reason(), fault.reason);

    EXPECT_EQ(FakeCuda::Census().allocations, before.allocations);
    EXPECT_EQ(FakeCuda::Census().events, before.events);
    ASSERT_TRUE(Open().ok());
    sender_.reset();
    receiver_.reset();
  }
}

TEST_F(CudaIpcFaultTest, AFrameWhoseFillingNeverEndsIsNotHandedOutAndTheWaitEnds) {
  ASSERT_TRUE(Open().ok());
  FrameSource source(device_, *sender_);
  FakeCuda::Fail("cudaEventRecord", 1, FakeCuda::kLost);
  ASSERT_TRUE(source.Send(0).ok());

  EXPECT_EQ(receiver_->Receive(Shortly()).status().reason(), "deadline");
  EXPECT_EQ(receiver_->Receive(Shortly()).status().reason(), "deadline") << "it is still to come";
  receiver_->Cancel();
  EXPECT_EQ(receiver_->Receive(Shortly()).status().reason(), "cancelled");
}

TEST_F(CudaIpcFaultTest, AFrameWhoseReadingNeverEndsIsNeverFilledAgain) {
  ASSERT_TRUE(Open().ok());
  FrameSource source(device_, *sender_);
  ASSERT_TRUE(source.Send(0).ok());
  ASSERT_TRUE(Drain(device_, source.stream()).ok());
  const Result<ReceivedFrame> frame = receiver_->Receive(Soon());
  ASSERT_TRUE(frame.ok()) << frame.status().ToString();
  const auto reading = device_.MakeStream(StreamPriority::kNormal).value();
  FakeCuda::Fail("cudaEventRecord", 1, FakeCuda::kLost);
  ASSERT_TRUE(receiver_->AcknowledgeReadOn(*frame, BucketAck{}, *reading).ok());

  EXPECT_EQ(sender_->NextAck(Shortly()).status().reason(), "deadline");
  EXPECT_FALSE(sender_->HasCredit());
}

// C-034.
TEST_F(CudaIpcFaultTest, MemoryThatUnfinishedWorkUsesIsKeptWhenItsRouteGoes) {
  ASSERT_TRUE(Open().ok());
  const int allocations = FakeCuda::Census().allocations;
  FrameSource source(device_, *sender_);
  FakeCuda::Fail("cudaEventRecord", 1, FakeCuda::kLost);
  ASSERT_TRUE(source.Send(0).ok());

  receiver_.reset();
  sender_.reset();

  EXPECT_EQ(FakeCuda::Census().allocations, allocations);
}

TEST_F(CudaIpcFaultTest, AnErrorOfTheDeviceIsPassedOnByEveryCallThatMeetsIt) {
  ASSERT_TRUE(Open().ok());
  FrameSource source(device_, *sender_);
  FakeCuda::Fail("cudaEventRecord", 1, cudaErrorIllegalAddress);
  EXPECT_EQ(source.Send(0).reason(), "device_lost");
  ASSERT_TRUE(source.Send(0).ok()) << "the frame was not sent";
  FakeCuda::Fail("cudaEventQuery", 1, cudaErrorIllegalAddress);
  EXPECT_EQ(receiver_->Receive(Soon()).status().reason(), "device_lost");
  ASSERT_TRUE(Drain(device_, source.stream()).ok());
  const Result<ReceivedFrame> frame = receiver_->Receive(Soon());
  ASSERT_TRUE(frame.ok()) << frame.status().ToString();
  FakeCuda::Fail("cudaEventRecord", 1, cudaErrorIllegalAddress);
  EXPECT_EQ(receiver_->AcknowledgeReadOn(*frame, BucketAck{}, source.stream()).reason(), "device_lost");

  EXPECT_EQ(sender_->NextAck(Deadline::At(clock_.Now())).status().reason(), "deadline")
      << "a frame whose reading could not be marked is not given back";
}

}  // namespace
}  // namespace bascule
