// What a route does when NCCL or CUDA fails, or the other end never answers.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "tests/support/fake_clock.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_nccl/control.h"
#include "tests/support/fake_nccl/fill_device.h"
#include "tests/unit/transport_nccl/nccl_world.h"

namespace bascule {
namespace {

Deadline Shortly() { return Deadline::After(Clock::Real(), std::chrono::milliseconds(20)); }

class NcclFaultTest : public testing::Test {
 protected:
  // What an engine and a trainer can do on a new route.
  testing::AssertionResult WorksAgain() {
    const Status opened = world_.Open();
    if (!opened.ok()) return testing::AssertionFailure() << opened.ToString();
    FrameSource source(world_.trainer, *world_.sender);
    FrameSink sink(world_.engine, *world_.receiver);
    for (int number = 0; number < 3; ++number) {
      if (const Status sent = source.Send(number); !sent.ok()) return testing::AssertionFailure() << sent.ToString();
      if (const Status took = sink.Take(); !took.ok()) return testing::AssertionFailure() << took.ToString();
    }
    if (!Drain(world_.engine, sink.stream()).ok() || sink.CountWrong() > 0)
      return testing::AssertionFailure() << "bytes";
    world_.CloseRoute();
    return testing::AssertionSuccess();
  }
  void ExpectNothingLeft() {
    EXPECT_EQ(FakeNccl::Census().communicators, before_.communicators);
    EXPECT_EQ(FakeNccl::Census().registrations, before_.registrations);
    EXPECT_EQ(FakeNccl::Census().boards, before_.boards);
    EXPECT_EQ(FakeCuda::Census().allocations, cuda_before_.allocations);
  }

  NcclWorld world_;
  const FakeNcclCensus before_ = FakeNccl::Census();
  const FakeCudaCensus cuda_before_ = FakeCuda::Census();
};

// C-029.
TEST_F(NcclFaultTest, AReceiverThatNeverComesIsWaitedForUntilTheDeadlineThenAbortedAndAvoided) {
  ASSERT_TRUE(world_.Open().ok());
  {
    FrameSource source(world_.trainer, *world_.sender);
    ASSERT_TRUE(source.Send(0).ok()) << "sending waits for nobody";

    EXPECT_EQ(world_.sender->NextAck(Shortly()).status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(world_.dialer.Avoids(world_.listener.endpoint())) << "there may be time left";
    world_.sender.reset();
  }

  EXPECT_EQ(world_.receiver->Receive(Soon()).status().reason(), "peer_lost");
  world_.receiver.reset();
  ExpectNothingLeft();
  EXPECT_TRUE(world_.dialer.Avoids(world_.listener.endpoint())) << "the next attempt takes another transport";
  EXPECT_TRUE(WorksAgain()) << "who insists may try";
}

// C-029.
TEST_F(NcclFaultTest, AReceiverThatHasNotJoinedInHalfAMinuteIsGivenUpWhileThereIsTimeForAnotherWay) {
  FakeClock clock;
  NcclDialer dialer(world_.trainer, world_.communicators, world_.carrying, clock);
  world_.listener.Expect(kHello.connection);
  const TransportEndpoint endpoint = world_.listener.endpoint();
  auto sender = dialer.Dial(endpoint, kHello, Soon()).value();
  FrameSource source(world_.trainer, *sender);
  ASSERT_TRUE(source.Send(0).ok());

  clock.Advance(std::chrono::seconds(31));

  EXPECT_EQ(sender->NextAck(Soon()).status().reason(), "nccl_deadline");
  EXPECT_TRUE(dialer.Avoids(endpoint));
}

TEST_F(NcclFaultTest, WhatIsAvoidedIsTriedAgainAfterAMinute) {
  FakeClock clock;
  NcclDialer dialer(world_.trainer, world_.communicators, world_.carrying, clock);
  world_.listener.Expect(kHello.connection);
  const TransportEndpoint endpoint = world_.listener.endpoint();
  auto sender = dialer.Dial(endpoint, kHello, Soon()).value();
  FakeNccl::Fail("ncclCommInitRankConfig", 1, ncclSystemError);
  EXPECT_EQ(FrameSource(world_.trainer, *sender).Send(0).reason(), "nccl_system_error");
  EXPECT_EQ(sender->NextAck(Soon()).status().reason(), "nccl_system_error");
  EXPECT_TRUE(dialer.Avoids(endpoint));

  clock.Advance(std::chrono::seconds(61));

  EXPECT_FALSE(dialer.Avoids(endpoint));
}

TEST_F(NcclFaultTest, AMoveThatNeverEndsIsNotHandedOutAndBothEndsAreFreeAfterwards) {
  ASSERT_TRUE(WorksAgain());
  ASSERT_TRUE(world_.Open().ok());
  {
    FrameSource source(world_.trainer, *world_.sender);
    FakeNccl::Fail("ncclSend", 1, FakeNccl::kLost);
    ASSERT_TRUE(source.Send(0).ok());
    EXPECT_EQ(world_.receiver->Receive(Shortly()).status().reason(), "deadline");
    EXPECT_EQ(world_.receiver->Receive(Shortly()).status().reason(), "deadline") << "it is still to come";
    EXPECT_EQ(world_.sender->NextAck(Shortly()).status().reason(), "deadline");

    world_.CloseRoute();
  }

  ExpectNothingLeft();
  EXPECT_TRUE(world_.dialer.Avoids(world_.listener.endpoint()));
  EXPECT_TRUE(WorksAgain());
}

TEST_F(NcclFaultTest, ACancelledEndWakesWhateverNcclDoes) {
  ASSERT_TRUE(world_.Open().ok());
  FrameSource source(world_.trainer, *world_.sender);
  FakeNccl::Fail("ncclSend", 1, FakeNccl::kLost);
  ASSERT_TRUE(source.Send(0).ok());
  EXPECT_EQ(world_.receiver->Receive(Shortly()).status().reason(), "deadline");

  world_.receiver->Cancel();
  world_.sender->Cancel();

  EXPECT_EQ(world_.receiver->Receive(Soon()).status().reason(), "cancelled");
  EXPECT_EQ(world_.sender->NextAck(Soon()).status().reason(), "cancelled");
}

TEST_F(NcclFaultTest, AnErrorOfNcclAtEitherEndEndsTheRouteByItsReasonAndTheOtherEndHears) {
  struct Case {
    const char* function;
    int error;
    const char* reason;
  };
  const Case cases[] = {{"ncclSend", ncclInternalError, "nccl_error"},
                        {"ncclSend", FakeNccl::kAsynchronous + ncclRemoteError, "nccl_remote_error"},
                        {"ncclCommRegister", ncclUnhandledCudaError, "nccl_cuda_error"}};
  for (const Case& fault : cases) {
    SCOPED_TRACE(fault.function);
    ASSERT_TRUE(world_.Open().ok());
    FrameSource source(world_.trainer, *world_.sender);
    FakeNccl::Fail(fault.function, 1, fault.error);
    (void)source.Send(0);
    // Whose call it is that fails depends on who is first.
    const Status there =
        world_.receiver->Receive(Deadline::After(Clock::Real(), std::chrono::milliseconds(300))).status();
    const Status here = world_.sender->NextAck(Shortly()).status();

    EXPECT_TRUE(here.reason() == fault.reason || there.reason() == fault.reason)
        << here.ToString() << "; " << there.ToString();
    world_.CloseRoute();
    ExpectNothingLeft();
    EXPECT_TRUE(WorksAgain());
  }
}

TEST_F(NcclFaultTest, ASenderWhoseDeviceHasNoRoomForItsCommunicatorSaysSoAndTheEndpointIsAvoided) {
  auto others = FillDevice(world_.trainer, world_.communicators);
  ASSERT_TRUE(world_.Open().ok());
  FrameSource source(world_.trainer, *world_.sender);

  EXPECT_EQ(source.Send(0).reason(), "nccl_too_many");

  EXPECT_EQ(world_.sender->NextAck(Soon()).status().reason(), "nccl_too_many") << "it stays";
  EXPECT_TRUE(world_.dialer.Avoids(world_.listener.endpoint()));
  others.clear();
  world_.sender.reset();
  EXPECT_EQ(world_.receiver->Receive(Soon()).status().reason(), "peer_lost");
  EXPECT_EQ(FakeNccl::Census().communicators, before_.communicators);
}

TEST_F(NcclFaultTest, AReceiverWhoseDeviceHasNoRoomForItsCommunicatorEndsTheRouteAndTheSenderDoesNotWait) {
  auto others = FillDevice(world_.engine, world_.communicators);
  ASSERT_TRUE(world_.Open().ok());
  FrameSource source(world_.trainer, *world_.sender);
  ASSERT_TRUE(source.Send(0).ok()) << "sending waits for nobody";

  const Status refused = world_.receiver->Receive(Soon()).status();
  world_.receiver.reset();

  EXPECT_EQ(refused.reason(), "nccl_too_many");
  EXPECT_EQ(world_.sender->NextAck(Soon()).status().reason(), "peer_lost");
  world_.dialer.NoteFailure(world_.listener.endpoint(), refused);  // as a session does with its peer's word
  EXPECT_TRUE(world_.dialer.Avoids(world_.listener.endpoint()));
  others.clear();
  world_.sender.reset();
  EXPECT_EQ(FakeNccl::Census().communicators, before_.communicators);
  EXPECT_EQ(FakeCuda::Census().allocations, cuda_before_.allocations);
  EXPECT_TRUE(WorksAgain());
}

TEST_F(NcclFaultTest, AnErrorOfTheReceiversIsLostToItsSenderWhenItCloses) {
  ASSERT_TRUE(world_.Open().ok());
  FrameSource source(world_.trainer, *world_.sender);
  ASSERT_TRUE(source.Send(0).ok());
  FakeNccl::Fail("ncclRecv", 1, ncclInternalError);
  EXPECT_EQ(world_.receiver->Receive(Soon()).status().reason(), "nccl_error");
  EXPECT_EQ(world_.receiver->Receive(Soon()).status().reason(), "nccl_error") << "it stays";

  world_.receiver.reset();

  EXPECT_EQ(world_.sender->NextAck(Soon()).status().reason(), "peer_lost");
  world_.sender.reset();
  EXPECT_FALSE(world_.dialer.Avoids(world_.listener.endpoint())) << "nothing says that NCCL was to blame";
}

// C-034.
TEST_F(NcclFaultTest, MemoryThatNcclDoesNotLetGoIsKeptAndTheRouteEndsAllTheSame) {
  ASSERT_TRUE(WorksAgain());
  ASSERT_TRUE(world_.Open().ok());
  FrameSource source(world_.trainer, *world_.sender);
  FakeNccl::Fail("ncclSend", 1, FakeNccl::kLost);
  ASSERT_TRUE(source.Send(0).ok());
  EXPECT_EQ(world_.receiver->Receive(Shortly()).status().reason(), "deadline");
  world_.receiver.reset();
  FakeNccl::Fail("ncclCommAbort", 1, FakeNccl::kLost);

  world_.sender.reset();  // waits for it for a while

  EXPECT_EQ(FakeCuda::Census().allocations, cuda_before_.allocations + 1);
  EXPECT_TRUE(WorksAgain());
}

TEST_F(NcclFaultTest, ARouteThatCudaCannotOpenSaysWhyAndLeavesNothing) {
  for (const auto& [function, nth] :
       {std::pair("cudaMalloc", 1), std::pair("cudaMalloc", 2), std::pair("cudaEventCreateWithFlags", 3)}) {
    FakeCuda::Fail(function, nth, cudaErrorMemoryAllocation);

    EXPECT_EQ(world_.Open().reason(), "device_memory");

    world_.CloseRoute();
    ExpectNothingLeft();
  }
  EXPECT_TRUE(WorksAgain());
}

TEST_F(NcclFaultTest, FramesLargerThanTheCarriersAreRefused) {
  RouteHello hello = kHello;
  hello.frame_bytes = kMaxFrameBytes;
  hello.credits = 1;
  world_.listener.Expect(hello.connection);

  EXPECT_EQ(world_.dialer.Dial(world_.listener.endpoint(), hello, Soon()).status().reason(), "bad_route");
}

}  // namespace
}  // namespace bascule
