// A frame whose second part goes to several engine ranks at once.
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <optional>

#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_nccl/control.h"
#include "tests/unit/transport_nccl/nccl_world.h"

namespace bascule {
namespace {

constexpr int kReceivers = 3;
const std::vector<int> kAll = {0, 1, 2};

// A trainer on device 0, and engine ranks on the next ones, one route to each.
class CastWorld {
 public:
  Status Open() {
    RouteHello hello = kHello;
    hello.connection = ++connection_;
    listener.Expect(hello.connection);
    std::vector<BucketSender*> routes;
    for (int rank = 0; rank < kReceivers; ++rank) {
      hello.route = {0, rank};
      ASSIGN_OR_RETURN(senders.emplace_back(), dialer.Dial(listener.endpoint(), hello, Soon()));
      ASSIGN_OR_RETURN(receivers.emplace_back(), listener.Accept(hello.connection, hello.route, Soon()));
      routes.push_back(senders.back().get());
    }
    listener.Forget(hello.connection);
    ASSIGN_OR_RETURN(cast, dialer.Cast(routes));
    return OkStatus();
  }
  void Close() {
    cast.reset();
    senders.clear();
    receivers.clear();
  }

  // Frame `number`, whose second part has `bytes` of its value; each first part has it too.
  Status Send(int number, std::size_t bytes) {
    RETURN_IF_ERROR(AwaitCredits());
    RETURN_IF_ERROR(stream->Fill(cast->AcquireDevicePayload().first(bytes), ByteOf(number)));
    ASSIGN_OR_RETURN(const std::uint32_t frame, cast->PutBy(*stream));
    cast->TakeUp(frame);
    for (std::size_t rank = 0; rank < kReceivers; ++rank) cast->Head(rank)[0] = ByteOf(number);
    return cast->SendFilledOn(1, bytes, *stream);
  }
  // Likewise, to one rank alone.
  Status SendAlone(int rank, int number) {
    BucketSender& sender = *senders[static_cast<std::size_t>(rank)];
    while (!sender.HasCredit()) RETURN_IF_ERROR(sender.NextAck(Soon()).status());
    sender.Acquire()[0] = ByteOf(number);
    RETURN_IF_ERROR(stream->Fill(sender.AcquireDevicePayload(), ByteOf(number)));
    return sender.SendFilledOn(1, kHello.frame_bytes, *stream);
  }
  // The next frame of each of `ranks`. All are asked in turn: what one of them waits for may be another.
  Result<std::vector<ReceivedFrame>> Receive(const std::vector<int>& ranks) {
    std::vector<std::optional<ReceivedFrame>> frames(ranks.size());
    for (const Deadline deadline = Soon(); !deadline.Passed(Clock::Real());) {
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (frames[i]) continue;
        const Result<ReceivedFrame> frame =
            Receiver(ranks[i]).Receive(Deadline::After(Clock::Real(), std::chrono::microseconds(100)));
        if (frame.ok()) frames[i] = *frame;
        if (!frame.ok() && frame.status().code() != StatusCode::kDeadlineExceeded) return frame.status();
      }
      if (!std::ranges::all_of(frames, [](const auto& frame) { return frame.has_value(); })) continue;
      std::vector<ReceivedFrame> all;
      for (const std::optional<ReceivedFrame>& frame : frames) all.push_back(*frame);
      return all;
    }
    return Status::DeadlineExceeded("deadline");
  }
  // The next frame of each is that one, whole, and is given back.
  testing::AssertionResult Take(const std::vector<int>& ranks, int number, std::size_t bytes) {
    const Result<std::vector<ReceivedFrame>> frames = Receive(ranks);
    if (!frames.ok()) return testing::AssertionFailure() << frames.status().ToString();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const ReceivedFrame& frame = (*frames)[i];
      const auto payload = ReadDevice(FakeDevice(1 + ranks[i]), frame.device_payload).value();
      const std::vector<std::byte> wanted(bytes, ByteOf(number));
      if (frame.bytes[0] != ByteOf(number)) return testing::AssertionFailure() << "another frame at " << ranks[i];
      if (payload != wanted) return testing::AssertionFailure() << payload.size() << " bytes, and not those";
      const Status given_back = Receiver(ranks[i]).Acknowledge(frame, BucketAck{});
      if (!given_back.ok()) return testing::AssertionFailure() << given_back.ToString();
    }
    return testing::AssertionSuccess();
  }
  BucketReceiver& Receiver(int rank) { return *receivers[static_cast<std::size_t>(rank)]; }

  Device& trainer = FakeDevice(0);
  Communicators& communicators = **LoadCommunicators();
  LoopbackNetwork network;
  std::unique_ptr<LoopbackListener> carrier = LoopbackListener::Create(network, "engine").value();
  LoopbackDialer carrying{network};
  NcclListener listener{{&FakeDevice(1), &FakeDevice(2), &FakeDevice(3)}, communicators, *carrier};
  NcclDialer dialer{trainer, communicators, carrying};
  std::vector<std::unique_ptr<BucketSender>> senders;
  std::vector<std::unique_ptr<BucketReceiver>> receivers;
  std::unique_ptr<BucketCast> cast;
  const std::unique_ptr<DeviceStream> stream = trainer.MakeStream(StreamPriority::kNormal).value();

 private:
  Status AwaitCredits() {
    for (const auto& sender : senders) {
      while (!sender->HasCredit()) RETURN_IF_ERROR(sender->NextAck(Soon()).status());
    }
    return OkStatus();
  }

  std::uint64_t connection_ = 0;
};

class NcclCastTest : public testing::Test {
 protected:
  NcclCastTest() {
    for (int device = 0; device <= kReceivers; ++device) {
      (void)FakeDevice(device).memory().Allocate(1).value();  // what a device makes once and keeps
    }
    before_ = FakeNccl::Census();
    cuda_before_ = FakeCuda::Census();
  }
  void ExpectNothingLeft() {
    EXPECT_EQ(FakeNccl::Census().communicators, before_.communicators);
    EXPECT_EQ(FakeNccl::Census().registrations, before_.registrations);
    EXPECT_EQ(FakeNccl::Census().boards, before_.boards);
    EXPECT_EQ(FakeCuda::Census().allocations, cuda_before_.allocations);
  }
  // What a trainer and all engine ranks can do on new routes.
  testing::AssertionResult WorksAgain() {
    if (const Status opened = world_.Open(); !opened.ok()) return testing::AssertionFailure() << opened.ToString();
    for (int number = 0; number < 3; ++number) {
      if (const Status sent = world_.Send(number, 100); !sent.ok())
        return testing::AssertionFailure() << sent.ToString();
      if (const auto taken = world_.Take(kAll, number, 100); !taken) return taken;
    }
    world_.Close();
    return testing::AssertionSuccess();
  }
  // The first of the ends to say something else than that it waits.
  Status WhoeverFails() {
    const Deadline deadline = Soon();
    while (!deadline.Passed(Clock::Real())) {
      const Deadline shortly = Deadline::After(Clock::Real(), std::chrono::milliseconds(2));
      for (const auto& receiver : world_.receivers) {
        const Status heard = receiver->Receive(shortly).status();
        if (!heard.ok() && heard.code() != StatusCode::kDeadlineExceeded) return heard;
      }
      for (const auto& sender : world_.senders) {
        const Status heard = sender->NextAck(shortly).status();
        if (!heard.ok() && heard.code() != StatusCode::kDeadlineExceeded) return heard;
      }
    }
    return OkStatus();
  }

  CastWorld world_;
  FakeNcclCensus before_;
  FakeCudaCensus cuda_before_;
};

TEST_F(NcclCastTest, OnePayloadReachesEveryRankAndLeavesTheSenderOnce) {
  ASSERT_TRUE(world_.Open().ok());
  constexpr std::size_t kBytes = 12'345;
  for (int number = 0; number < 9; ++number) {
    FakeCuda::SetSeed(static_cast<std::uint64_t>(number));
    FakeNccl::SetSeed(static_cast<std::uint64_t>(number));
    ASSERT_TRUE(world_.Send(number, kBytes).ok());
    EXPECT_TRUE(world_.Take(kAll, number, kBytes)) << number;
  }

  EXPECT_EQ(FakeNccl::Census().broadcasts - before_.broadcasts, 9);
  EXPECT_EQ(FakeNccl::Census().bytes_sent - before_.bytes_sent, 9 * kBytes) << "only what is filled, and once";
  world_.Close();
  ExpectNothingLeft();
}

TEST_F(NcclCastTest, RanksTakeFramesOfCastsAndTheirOwnInTheOrderInWhichTheyWereSent) {
  ASSERT_TRUE(world_.Open().ok());
  for (int round = 0; round < 6; ++round) {
    ASSERT_TRUE(world_.SendAlone(round % kReceivers, 2 * round).ok());
    ASSERT_TRUE(world_.Send(2 * round + 1, 777).ok());

    EXPECT_TRUE(world_.Take({round % kReceivers}, 2 * round, kHello.frame_bytes));
    EXPECT_TRUE(world_.Take(kAll, 2 * round + 1, 777));
  }
}

TEST_F(NcclCastTest, ARankThatLagsHoldsTheCastBackAndNoFrameIsUsedAgainBeforeItHasGivenItBack) {
  ASSERT_TRUE(world_.Open().ok());
  std::vector<ReceivedFrame> held;
  for (int number = 0; number < kHello.credits; ++number) {
    ASSERT_TRUE(world_.Send(number, 500).ok());
    const auto frames = world_.Receive(kAll);
    ASSERT_TRUE(frames.ok()) << frames.status().ToString();
    held.push_back(frames->front());
    for (int rank = 1; rank < kReceivers; ++rank) {
      ASSERT_TRUE(world_.Receiver(rank).Acknowledge((*frames)[static_cast<std::size_t>(rank)], BucketAck{}).ok());
    }
  }
  EXPECT_FALSE(world_.senders[0]->HasCredit());
  for (int number = 0; number < kHello.credits; ++number) {
    const ReceivedFrame& frame = held[static_cast<std::size_t>(number)];
    EXPECT_EQ(ReadDevice(FakeDevice(1), frame.device_payload).value(), std::vector(500, ByteOf(number)));
    ASSERT_TRUE(world_.Receiver(0).Acknowledge(frame, BucketAck{}).ok());
  }

  ASSERT_TRUE(world_.Send(kHello.credits, 500).ok());

  EXPECT_TRUE(world_.Take(kAll, kHello.credits, 500));
}

// C-029.
TEST_F(NcclCastTest, ARankThatNeverComesIsWaitedForUntilTheDeadlineThenAbortedAndAvoided) {
  ASSERT_TRUE(world_.Open().ok());
  ASSERT_TRUE(world_.Send(0, 100).ok()) << "sending waits for nobody";
  const auto shortly = [] { return Deadline::After(Clock::Real(), std::chrono::milliseconds(20)); };

  for (int rank = 1; rank < kReceivers; ++rank) {
    EXPECT_EQ(world_.receivers[static_cast<std::size_t>(rank)]->Receive(shortly()).status().reason(), "deadline");
  }
  EXPECT_EQ(world_.senders[1]->NextAck(shortly()).status().reason(), "deadline");
  world_.Close();

  ExpectNothingLeft();
  EXPECT_TRUE(world_.dialer.Avoids(world_.listener.endpoint()));
  EXPECT_TRUE(WorksAgain()) << "who insists may try";
}

TEST_F(NcclCastTest, AFailureOfAnyCallEndsTheRoutesByNameAndLeavesNothing) {
  struct Case {
    const char* function;
    int nth;
    int error;
    const char* reason;
  };
  std::vector<Case> cases;
  for (int nth = 1; nth <= 1 + kReceivers; ++nth) {
    // The sender's own leaves an id behind that nobody comes to, which is NCCL's to keep.
    if (nth > 1) cases.push_back({"ncclCommInitRankConfig", nth, ncclSystemError, "nccl_system_error"});
    cases.push_back({"ncclCommRegister", nth, ncclUnhandledCudaError, "nccl_cuda_error"});
    cases.push_back({"ncclBroadcast", nth, ncclInternalError, "nccl_error"});
    cases.push_back({"ncclBroadcast", nth, FakeNccl::kAsynchronous + ncclRemoteError, "nccl_remote_error"});
  }
  for (const Case& fault : cases) {
    SCOPED_TRACE(fmt::format("{} {} {}", fault.function, fault.nth, fault.error));
    ASSERT_TRUE(world_.Open().ok());
    FakeNccl::Fail(fault.function, fault.nth, fault.error);
    Status why = world_.Send(0, 100);
    if (why.ok()) why = WhoeverFails();

    EXPECT_EQ(why.reason(), fault.reason) << why.ToString();
    world_.Close();
    ExpectNothingLeft();
    EXPECT_TRUE(WorksAgain());
  }
}

TEST_F(NcclCastTest, ABroadcastThatNeverEndsIsHandedOutToNobodyAndAllEndsAreFreeAfterwards) {
  for (int nth = 1; nth <= 1 + kReceivers; ++nth) {
    SCOPED_TRACE(nth);
    ASSERT_TRUE(world_.Open().ok());
    FakeNccl::Fail("ncclBroadcast", nth, FakeNccl::kLost);
    ASSERT_TRUE(world_.Send(0, 100).ok());
    std::vector<bool> handed_out(kReceivers);
    for (int round = 0; round < 40; ++round) {
      for (int rank = 0; rank < kReceivers; ++rank) {
        const Deadline shortly = Deadline::After(Clock::Real(), std::chrono::milliseconds(1));
        if (world_.Receiver(rank).Receive(shortly).ok()) handed_out[static_cast<std::size_t>(rank)] = true;
      }
    }
    // A rank whose own part has ended has all of the frame.
    EXPECT_LT(std::ranges::count(handed_out, true), kReceivers);

    world_.Close();
    ExpectNothingLeft();
  }
  EXPECT_TRUE(WorksAgain());
}

}  // namespace
}  // namespace bascule
