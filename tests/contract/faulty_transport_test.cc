// The fault seam does to a route what its plan says, and nothing else.
#include "tests/support/faulty_transport.h"

#include <gtest/gtest.h>

#include <vector>

#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/listener.h"
#include "tests/support/fake_clock.h"

namespace bascule {
namespace {

constexpr std::size_t kFrameBytes = 8;

class FaultyTransportTest : public testing::Test {
 protected:
  // Opens a route with the given faults at each end.
  void Open(const FaultPlan& receiving, const FaultPlan& sending = {}) {
    const RouteHello hello{.connection = 1, .route = {0, 0}, .frame_bytes = kFrameBytes, .credits = 8};
    FaultyListener listener(*inner_listener_, receiving, clock_);
    FaultyDialer dialer(inner_dialer_, sending);
    listener.Expect(1);
    sender_ = dialer.Dial(listener.endpoint(), hello, Never()).value();
    receiver_ = listener.Accept(1, hello.route, Never()).value();
  }

  Deadline Never() { return Deadline::After(clock_, std::chrono::hours(1)); }
  Deadline Now() { return Deadline::After(clock_, Duration::zero()); }

  Status Send(std::uint8_t number) {
    std::ranges::fill(sender_->Acquire(), std::byte{number});
    return sender_->Send(kFrameBytes);
  }

  void SendAll(std::uint8_t count) {
    for (std::uint8_t number = 0; number < count; ++number) ASSERT_TRUE(Send(number).ok());
  }

  // What arrives now: the numbers of the frames, which are acknowledged with their number as bucket.
  std::vector<int> Arrivals() {
    std::vector<int> numbers;
    while (true) {
      const Result<ReceivedFrame> frame = receiver_->Receive(Now());
      if (!frame.ok()) return numbers;
      const auto number = std::to_integer<std::uint32_t>(frame->bytes.back());
      numbers.push_back(static_cast<int>(number));
      (void)receiver_->Acknowledge(*frame, BucketAck{.bucket = number});
    }
  }

  std::vector<int> Acks() {
    std::vector<int> buckets;
    while (true) {
      const Result<BucketAck> ack = sender_->NextAck(Now());
      if (!ack.ok()) return buckets;
      buckets.push_back(ack->verdict == BucketVerdict::kGood ? static_cast<int>(ack->bucket) : -1);
    }
  }

  // The past can be waited for: that is how a test polls with a fake clock.
  FakeClock clock_;
  LoopbackNetwork network_;
  std::unique_ptr<LoopbackListener> inner_listener_ = LoopbackListener::Create(network_, "engine", clock_).value();
  LoopbackDialer inner_dialer_{network_, clock_};
  std::unique_ptr<BucketSender> sender_;
  std::unique_ptr<BucketReceiver> receiver_;
};

TEST_F(FaultyTransportTest, WithoutFaultsEverythingPasses) {
  Open({});
  SendAll(4);

  EXPECT_EQ(Arrivals(), (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(Acks(), (std::vector{0, 1, 2, 3}));
}

TEST_F(FaultyTransportTest, ADroppedFrameNeverArrivesAndIsNeverAcknowledged) {
  Open({.frames = {{.kind = FaultKind::kDrop, .at = 1}}});
  SendAll(3);

  EXPECT_EQ(Arrivals(), (std::vector{0, 2}));
  EXPECT_EQ(Acks(), (std::vector{0, 2}));
}

TEST_F(FaultyTransportTest, ADuplicatedFrameArrivesTwiceAndIsAcknowledgedOnce) {
  Open({.frames = {{.kind = FaultKind::kDuplicate, .at = 0, .behind = 0}, {.kind = FaultKind::kDuplicate, .at = 1}}});
  SendAll(3);

  EXPECT_EQ(Arrivals(), (std::vector{0, 0, 1, 2, 1}));
  EXPECT_EQ(Acks(), (std::vector{0, 1, 2}));
}

TEST_F(FaultyTransportTest, AHeldFrameArrivesBehindTheOthers) {
  Open({.frames = {{.kind = FaultKind::kHold, .at = 0, .behind = 2}}});
  SendAll(4);

  EXPECT_EQ(Arrivals(), (std::vector{1, 2, 0, 3}));
}

TEST_F(FaultyTransportTest, AHeldFrameArrivesWhenItsTimeHasComeThoughNothingElsePasses) {
  Open({.frames = {{.kind = FaultKind::kHold, .at = 0, .at_most = std::chrono::seconds(2)}}});
  SendAll(1);

  EXPECT_EQ(Arrivals(), std::vector<int>{});
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(Arrivals(), std::vector<int>{});
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_EQ(Arrivals(), std::vector{0});
}

TEST_F(FaultyTransportTest, ACorruptedFrameDiffersInOneBit) {
  Open({.frames = {{.kind = FaultKind::kCorrupt, .at = 0, .offset = -2}}});
  SendAll(1);

  const Result<ReceivedFrame> frame = receiver_->Receive(Now());

  ASSERT_TRUE(frame.ok());
  for (std::size_t i = 0; i < kFrameBytes; ++i) EXPECT_EQ(frame->bytes[i], std::byte(i == 6 ? 1 : 0)) << i;
}

TEST_F(FaultyTransportTest, ATruncatedFrameIsShort) {
  Open({.frames = {{.kind = FaultKind::kTruncate, .at = 0, .offset = 3},
                   {.kind = FaultKind::kTruncate, .at = 1, .offset = -1}}});
  SendAll(2);

  EXPECT_EQ(receiver_->Receive(Now()).value().bytes.size(), 3U);
  EXPECT_EQ(receiver_->Receive(Now()).value().bytes.size(), kFrameBytes - 1);
}

TEST_F(FaultyTransportTest, ACutLosesThePeerOnBothSidesAndLeavesWhatWasReceived) {
  Open({.frames = {{.kind = FaultKind::kCut, .at = 1}}});
  SendAll(2);
  const ReceivedFrame first = receiver_->Receive(Now()).value();

  EXPECT_EQ(receiver_->Receive(Never()).status().reason(), "peer_lost");

  EXPECT_EQ(first.bytes.front(), std::byte{0});
  EXPECT_EQ(receiver_->Acknowledge(first, BucketAck{}).reason(), "peer_lost");
  EXPECT_EQ(sender_->NextAck(Never()).status().reason(), "peer_lost");
}

TEST_F(FaultyTransportTest, AcknowledgementsAreDroppedHeldAndFalsifiedToo) {
  Open({.acks = {{.kind = FaultKind::kHold, .at = 0},
                 {.kind = FaultKind::kDrop, .at = 1},
                 {.kind = FaultKind::kCorrupt, .at = 3}}});
  SendAll(5);

  EXPECT_EQ(Arrivals(), (std::vector{0, 1, 2, 3, 4}));

  EXPECT_EQ(Acks(), (std::vector{2, 0, -1, 4}));
}

TEST_F(FaultyTransportTest, ACutInsteadOfAnAcknowledgementLosesThePeerOnBothSides) {
  Open({.acks = {{.kind = FaultKind::kCut, .at = 1}}});
  SendAll(3);

  EXPECT_EQ(Arrivals(), (std::vector{0, 1}));

  EXPECT_EQ(Acks(), std::vector{0});
  EXPECT_EQ(sender_->NextAck(Never()).status().reason(), "peer_lost");
}

TEST_F(FaultyTransportTest, TheSendingEndCorruptsTruncatesAndCuts) {
  Open({}, {.frames = {{.kind = FaultKind::kCorrupt, .at = 0, .offset = 0},
                       {.kind = FaultKind::kTruncate, .at = 1, .offset = 2},
                       {.kind = FaultKind::kCut, .at = 2}}});
  ASSERT_TRUE(Send(0).ok());
  ASSERT_TRUE(Send(1).ok());
  EXPECT_EQ(receiver_->Receive(Now()).value().bytes.front(), std::byte{1});
  EXPECT_EQ(receiver_->Receive(Now()).value().bytes.size(), 2U);

  EXPECT_EQ(Send(2).reason(), "peer_lost");

  EXPECT_TRUE(sender_->HasCredit());
  EXPECT_EQ(Send(3).reason(), "peer_lost");
  EXPECT_EQ(receiver_->Receive(Never()).status().reason(), "peer_lost");
}

TEST_F(FaultyTransportTest, TheSendingEndLosesAndFalsifiesAcknowledgements) {
  Open({}, {.acks = {{.kind = FaultKind::kDrop, .at = 0}, {.kind = FaultKind::kCorrupt, .at = 1}}});
  SendAll(3);
  ASSERT_EQ(Arrivals().size(), 3U);

  EXPECT_EQ(Acks(), (std::vector{-1, 2}));
}

TEST_F(FaultyTransportTest, RefusedDialsFailAndTheNextOneWorks) {
  FaultyDialer dialer(inner_dialer_, {}, /*refused_dials=*/2);
  inner_listener_->Expect(1);
  const RouteHello hello{.connection = 1, .route = {0, 0}, .frame_bytes = kFrameBytes, .credits = 1};

  EXPECT_EQ(dialer.Dial(inner_listener_->endpoint(), hello, Never()).status().reason(), "peer_unreachable");
  EXPECT_EQ(dialer.Dial(inner_listener_->endpoint(), hello, Never()).status().reason(), "peer_unreachable");
  EXPECT_TRUE(dialer.Dial(inner_listener_->endpoint(), hello, Never()).ok());
}

TEST_F(FaultyTransportTest, APlanForOneRouteLeavesTheOthersAlone) {
  Open({.frames = {{.kind = FaultKind::kDrop, .at = 0}}, .route = Route{3, 3}});
  SendAll(2);

  EXPECT_EQ(Arrivals(), (std::vector{0, 1}));
}

TEST(FaultPlanTest, ASeedMakesAPlanThatRepeatsAndPrints) {
  const std::vector kinds = {FaultKind::kCorrupt, FaultKind::kDrop};

  const FaultPlan plan = RandomFaultPlan(7, 1000, 0.1, kinds);

  EXPECT_EQ(ToString(plan), ToString(RandomFaultPlan(7, 1000, 0.1, kinds)));
  EXPECT_NE(ToString(plan), ToString(RandomFaultPlan(8, 1000, 0.1, kinds)));
  EXPECT_GT(plan.frames.size(), 50U);
  EXPECT_LT(plan.frames.size(), 200U);
  EXPECT_EQ(ToString({.frames = {{.kind = FaultKind::kCorrupt, .at = 7, .offset = -12}}}),
            "frames: corrupt@7[-12]; acks: none");
}

TEST(TransportNameTest, EveryKindHasANameThatParsesBackToIt) {
  for (const TransportKind kind : {TransportKind::kLoopback, TransportKind::kShm, TransportKind::kGrpc,
                                   TransportKind::kCudaIpc, TransportKind::kNccl}) {
    const Result<TransportKind> parsed = ParseTransport(TransportName(kind));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, kind);
  }
  EXPECT_EQ(TransportName(TransportKind::kShm), "shm");
  EXPECT_EQ(TransportName(TransportKind::kCudaIpc), "cuda_ipc");
  EXPECT_EQ(TransportName(TransportKind::kNccl), "nccl");
  EXPECT_EQ(ParseTransport("carrier_pigeon").status().reason(), "unknown_transport");
}

}  // namespace
}  // namespace bascule
