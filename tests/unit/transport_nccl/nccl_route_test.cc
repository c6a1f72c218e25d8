// What an nccl route brings beyond the contract suite: frames that go from device to device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bridge/transport/nccl/messages.h"
#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_nccl/control.h"
#include "tests/unit/transport_nccl/nccl_world.h"

namespace bascule {
namespace {

class NcclRouteTest : public testing::Test {
 protected:
  // Sends frames through both parts in an order drawn from `seed`; how many arrived wrong.
  int CountWrong(std::uint64_t seed, Mistake mistake = Mistake::kNone) {
    constexpr int kFrames = 8;
    FakeCuda::SetSeed(seed);
    FakeNccl::SetSeed(seed);
    FrameSource source(world_.trainer, *world_.sender);
    FrameSink sink(world_.engine, *world_.receiver);
    for (int number = 0; number < kFrames; ++number) {
      EXPECT_TRUE(source.Send(number).ok());
      EXPECT_TRUE(sink.Take(mistake).ok());
    }
    for (int free = 0; free < kHello.credits && world_.sender->NextAck(Soon()).ok();) free += 1;
    EXPECT_TRUE(Drain(world_.engine, sink.stream()).ok());
    return sink.CountWrong();
  }

  NcclWorld world_;
};

TEST_F(NcclRouteTest, BothPartsOfAFrameArriveAsTheyWereSentWhateverOrderStreamsRunIn) {
  ASSERT_TRUE(world_.Open().ok());
  ASSERT_TRUE(world_.sender->HasDevicePayload());

  for (std::uint64_t seed = 1; seed <= 8; ++seed) EXPECT_EQ(CountWrong(seed), 0) << "seed " << seed;
}

TEST_F(NcclRouteTest, AFrameThatIsGivenBackWithoutTheEventOfItsReadingIsFoundOut) {
  ASSERT_TRUE(world_.Open().ok());
  bool found = false;

  for (std::uint64_t seed = 1; seed <= 100 && !found; ++seed) {
    found = CountWrong(seed, Mistake::kGivenBackWhileItIsRead) > 0;
  }

  EXPECT_TRUE(found);
}

TEST_F(NcclRouteTest, FramesWithASecondPartAndWithoutOneMayFollowEachOther) {
  ASSERT_TRUE(world_.Open().ok());
  FrameSource source(world_.trainer, *world_.sender);
  for (int number = 0; number < 6; ++number) {
    const bool has_payload = number % 3 != 1;
    if (has_payload) {
      ASSERT_TRUE(source.Send(number).ok());
    } else {
      world_.sender->Acquire()[0] = ByteOf(number);
      ASSERT_TRUE(world_.sender->Send(1).ok());
    }

    const Result<ReceivedFrame> frame = world_.receiver->Receive(Soon());

    ASSERT_TRUE(frame.ok()) << frame.status().ToString();
    EXPECT_EQ(frame->bytes[0], ByteOf(number));
    EXPECT_EQ(frame->device_payload.empty(), !has_payload);
    if (has_payload) {
      EXPECT_THAT(ReadDevice(world_.engine, frame->device_payload).value(), testing::Each(ByteOf(number)));
    }
    ASSERT_TRUE(world_.receiver->Acknowledge(*frame, BucketAck{}).ok());
    ASSERT_TRUE(world_.sender->NextAck(Soon()).ok());
  }
}

TEST_F(NcclRouteTest, SeveralFramesAreFilledAtOnceAndSentInAnyOrder) {
  ASSERT_TRUE(world_.Open().ok());
  BucketSender& sender = *world_.sender;
  FrameSink sink(world_.engine, *world_.receiver);
  const auto stream = world_.trainer.MakeStream(StreamPriority::kNormal).value();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(stream->Fill(sender.AcquireDevicePayload(), ByteOf(2 * round + 1)).ok());
    const std::uint32_t first = sender.PutBy(*stream).value();
    ASSERT_TRUE(stream->Fill(sender.AcquireDevicePayload(), ByteOf(2 * round)).ok());
    const std::uint32_t second = sender.PutBy(*stream).value();
    EXPECT_FALSE(sender.HasCredit()) << "a frame put by keeps its credit";

    for (const auto& [number, byte] : {std::pair(second, 2 * round), std::pair(first, 2 * round + 1)}) {
      sender.TakeUp(number);
      sender.Acquire()[0] = ByteOf(byte);
      ASSERT_TRUE(sender.SendFilledOn(1, kHello.frame_bytes, *stream).ok());
      ASSERT_TRUE(sink.Take().ok());
    }
    for (int free = 0; free < kHello.credits; ++free) ASSERT_TRUE(sender.NextAck(Soon()).ok());
  }

  ASSERT_TRUE(Drain(world_.engine, sink.stream()).ok());
  EXPECT_EQ(sink.CountWrong(), 0);
}

// C-101.
TEST_F(NcclRouteTest, ItsCommunicatorAndItsRegisteredMemoryServeSessionAfterSessionAndGoWithTheRoute) {
  for (Device* const device : {&world_.trainer, &world_.engine}) {
    (void)device->memory().Allocate(1).value();  // what a device makes once and keeps
  }
  const FakeNcclCensus before = FakeNccl::Census();
  const FakeCudaCensus cuda_before = FakeCuda::Census();
  ASSERT_TRUE(world_.Open().ok());
  EXPECT_EQ(FakeNccl::Census().communicators, before.communicators) << "made for the first frame that needs it";
  for (int session = 0; session < 3; ++session) {
    EXPECT_EQ(CountWrong(1), 0);
    EXPECT_EQ(FakeNccl::Census().communicators, before.communicators + 2);
    EXPECT_EQ(FakeNccl::Census().registrations, before.registrations + 2);
  }

  world_.CloseRoute();

  EXPECT_EQ(FakeNccl::Census().communicators, before.communicators);
  EXPECT_EQ(FakeNccl::Census().registrations, before.registrations);
  EXPECT_EQ(FakeNccl::Census().boards, before.boards);
  EXPECT_EQ(FakeCuda::Census().allocations, cuda_before.allocations);
  EXPECT_EQ(FakeCuda::Census().events, cuda_before.events);
  EXPECT_EQ(FakeCuda::Census().streams, cuda_before.streams);
}

TEST_F(NcclRouteTest, RoutesThatAreOpenedAgainMakeAnotherCommunicator) {
  for (int membership = 0; membership < 3; ++membership) {
    ASSERT_TRUE(world_.Open().ok());
    EXPECT_EQ(CountWrong(2), 0);
    world_.CloseRoute();
  }
}

TEST_F(NcclRouteTest, AnAddressNamesDeviceVersionAndCarrier) {
  const TransportEndpoint endpoint = world_.listener.endpoint();

  EXPECT_EQ(endpoint.address, world_.engine.description().uuid.ToString() + ":2.28.9:loopback:engine");
  const NcclAddress address = ParseNcclAddress(endpoint.address).value();
  EXPECT_EQ(address.carrier, (TransportEndpoint{TransportKind::kLoopback, "engine"}));
  const NcclAddress far{{address.devices[0], DeviceUuid{}}, "2.19.1", {TransportKind::kGrpc, "[::1]:5000"}};
  EXPECT_EQ(ParseNcclAddress(ToAddress(far))->carrier, far.carrier);
  EXPECT_EQ(ParseNcclAddress(ToAddress(far))->devices, far.devices);
  for (const char* const bad : {"", "GPU-1", "GPU-1:2:loopback:x"}) {
    EXPECT_EQ(ParseNcclAddress(bad).status().reason().substr(0, 4), "bad_") << bad;
  }
}

TEST_F(NcclRouteTest, AnEndpointIsReachedOnlyOnAnotherDeviceWithTheSameNcclOverACarrierThatReachesIt) {
  const TransportEndpoint good = world_.listener.endpoint();
  const DeviceUuid here = world_.trainer.description().uuid;
  const DeviceUuid there = world_.engine.description().uuid;
  const TransportEndpoint carrier = world_.carrier->endpoint();
  const std::pair<NcclAddress, const char*> cases[] = {
      {{{there, here}, "2.28.9", carrier}, "same_device"},
      {{{there}, "2.27.3", carrier}, "nccl_version"},
      {{{there}, "2.28.9", {TransportKind::kLoopback, "nobody"}}, "peer_unreachable"}};
  ASSERT_TRUE(world_.dialer.CanReach(good));

  for (const auto& [address, reason] : cases) {
    const TransportEndpoint endpoint{TransportKind::kNccl, ToAddress(address)};
    EXPECT_EQ(world_.dialer.Dial(endpoint, kHello, Soon()).status().reason(), reason);
    EXPECT_FALSE(world_.dialer.CanReach(endpoint)) << reason;
  }
}

TEST_F(NcclRouteTest, WordsThatAreNoneOfOursAreRefused) {
  std::vector<std::byte> frame(kNcclWordsBytes + 10);
  WriteWords({.payload_bytes = 100}, frame);
  ASSERT_TRUE(ReadWords(frame, 100).ok());

  EXPECT_EQ(ReadWords(frame, 99).status().reason(), "bad_frame");
  EXPECT_EQ(ReadWords(std::span(frame).first(kNcclWordsBytes - 1), 100).status().reason(), "bad_frame");
  frame[0] = std::byte{9};
  EXPECT_EQ(ReadWords(frame, 100).status().reason(), "bad_frame");
}

TEST_F(NcclRouteTest, AFrameOfTheCarriersOwnEndsTheRouteWithItsReason) {
  RouteHello hello = kHello;
  hello.connection = 77;
  world_.listener.Expect(hello.connection);
  const auto stranger = world_.carrying.Dial(world_.carrier->endpoint(), hello, Soon()).value();
  const auto receiver = world_.listener.Accept(hello.connection, hello.route, Soon()).value();
  (void)stranger->Acquire();
  ASSERT_TRUE(stranger->Send(10).ok());

  EXPECT_EQ(receiver->Receive(Soon()).status().reason(), "bad_frame");
  EXPECT_EQ(receiver->Receive(Soon()).status().reason(), "bad_frame");
}

}  // namespace
}  // namespace bascule
