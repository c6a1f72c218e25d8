// What every transport promises (bridge/transport/transport.h), tested the same way for all of them.
#include "tests/contract/transport_contract.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/worker.h"
#include "bridge/bucket/bucket_format.h"
#include "tests/support/process_census.h"

namespace bascule {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kConnection = 0x5ca1ab1e;

// Long enough for any machine; a test that gets here has failed.
Deadline Soon() { return Deadline::After(Clock::Real(), seconds(30)); }
Deadline Shortly() { return Deadline::After(Clock::Real(), milliseconds(5)); }

struct OpenRoute {
  std::unique_ptr<BucketSender> sender;
  std::unique_ptr<BucketReceiver> receiver;
};

Result<OpenRoute> Open(TransportWorld& world, RouteHello hello) {
  world.listener().Expect(hello.connection);
  ASSIGN_OR_RETURN(auto sender, world.dialer().Dial(world.listener().endpoint(), hello, Soon()));
  ASSIGN_OR_RETURN(auto receiver, world.listener().Accept(hello.connection, hello.route, Soon()));
  return OpenRoute{std::move(sender), std::move(receiver)};
}

RouteHello HelloOf(std::int64_t frame_bytes, std::int32_t credits) {
  return RouteHello{.connection = kConnection, .route = {0, 0}, .frame_bytes = frame_bytes, .credits = credits};
}

// Byte i of frame `number`: no two frames of a test are alike, nor are two halves of one.
std::byte PatternAt(std::uint64_t number, std::size_t i) {
  return static_cast<std::byte>((number * 131 + i * 7 + (i >> 8) * 13) & 0xff);
}

void FillPattern(std::span<std::byte> bytes, std::uint64_t number) {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = PatternAt(number, i);
}

bool HasPattern(std::span<const std::byte> bytes, std::uint64_t number) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != PatternAt(number, i)) return false;
  }
  return true;
}

Status SendPattern(BucketSender& sender, std::uint64_t number, std::size_t bytes) {
  FillPattern(sender.Acquire().first(bytes), number);
  return sender.Send(bytes);
}

TEST_P(TransportContractTest, KindAndEndpointAgreeAndTheEndpointCanBeReached) {
  const TransportEndpoint endpoint = world_->listener().endpoint();

  EXPECT_EQ(endpoint.kind, GetParam().kind);
  EXPECT_EQ(world_->dialer().kind(), GetParam().kind);
  EXPECT_TRUE(world_->dialer().CanReach(endpoint));
  TransportEndpoint other = endpoint;
  other.kind = endpoint.kind == TransportKind::kShm ? TransportKind::kGrpc : TransportKind::kShm;
  EXPECT_FALSE(world_->dialer().CanReach(other));
}

TEST_P(TransportContractTest, BothEndsSeeTheSameHello) {
  RouteHello hello = HelloOf(/*frame_bytes=*/10'000, /*credits=*/3);
  hello.route = {.sender_rank = 5, .engine_rank = 2};

  const Result<OpenRoute> route = Open(*world_, hello);

  ASSERT_TRUE(route.ok()) << route.status().ToString();
  EXPECT_EQ(route->receiver->hello(), hello);
  EXPECT_EQ(route->sender->frame_bytes(), 10'000);
  EXPECT_EQ(route->sender->credits(), 3);
  EXPECT_EQ(route->sender->wants_checksum(), GetParam().wants_checksum);
}

TEST_P(TransportContractTest, FramesArriveInOrderAndIntact) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/65'537, /*credits=*/8));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  const std::size_t sizes[] = {1, 64, 4096, 65'537, 0, 12'345};

  for (std::uint64_t number = 0; number < std::size(sizes); ++number) {
    ASSERT_TRUE(SendPattern(*route->sender, number, sizes[number]).ok());
  }

  for (std::uint64_t number = 0; number < std::size(sizes); ++number) {
    const Result<ReceivedFrame> frame = route->receiver->Receive(Soon());
    ASSERT_TRUE(frame.ok()) << frame.status().ToString();
    EXPECT_EQ(frame->bytes.size(), sizes[number]);
    EXPECT_TRUE(HasPattern(frame->bytes, number)) << "frame " << number;
  }
}

// Of transports whose ends share a process.
TEST_P(TransportContractTest, AFrameThatNamesItsPayloadKeepsThatUntilItIsAcknowledged) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/1000, /*credits=*/1));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  ASSERT_EQ(route->sender->TakesViews(), GetParam().kind == TransportKind::kLoopback);
  if (!route->sender->TakesViews()) return;
  auto memory = std::make_shared<const std::vector<std::byte>>(100, std::byte{7});
  const std::weak_ptr<const std::vector<std::byte>> alive = memory;
  const std::byte* const base = memory->data();
  for (int round = 0; round < 2; ++round) {
    FillPattern(route->sender->Acquire().first(10), 1);

    ASSERT_TRUE(route->sender->SendViews(10, {{base, {.offset = 3}, memory}, {base, {.offset = 50}, memory}}).ok());
    if (round == 1) memory.reset();
    const ReceivedFrame frame = route->receiver->Receive(Soon()).value();

    EXPECT_TRUE(HasPattern(frame.bytes, 1));
    ASSERT_EQ(frame.payload.size(), 2U);
    EXPECT_EQ(frame.payload[1].base, base);
    EXPECT_EQ(frame.payload[1].place.offset, 50);
    EXPECT_FALSE(alive.expired());
    ASSERT_TRUE(route->receiver->Acknowledge(frame, BucketAck{}).ok());
    EXPECT_EQ(alive.expired(), round == 1);
    ASSERT_TRUE(route->sender->NextAck(Soon()).ok());
  }
  ASSERT_TRUE(SendPattern(*route->sender, 2, 10).ok());
  EXPECT_TRUE(route->receiver->Receive(Soon()).value().payload.empty()) << "the frame holds its payload again";
}

TEST_P(TransportContractTest, AFrameIsAlignedAndStaysTheSameUntilItIsSent) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/1000, /*credits=*/3));
  ASSERT_TRUE(route.ok()) << route.status().ToString();

  for (std::uint64_t number = 0; number < 3; ++number) {
    const std::span<std::byte> first = route->sender->Acquire();
    const std::span<std::byte> again = route->sender->Acquire();

    EXPECT_EQ(first.data(), again.data());
    EXPECT_EQ(first.size(), 1000U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.data()) % 64, 0U);
    ASSERT_TRUE(route->sender->Send(10).ok());
  }
}

// C-098.
TEST_P(TransportContractTest, CreditsBoundTheFramesThatAreOut) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/256, /*credits=*/3));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  BucketSender& sender = *route->sender;

  for (std::uint64_t number = 0; number < 3; ++number) {
    ASSERT_TRUE(sender.HasCredit());
    ASSERT_TRUE(SendPattern(sender, number, 256).ok());
  }
  EXPECT_FALSE(sender.HasCredit());

  const Result<ReceivedFrame> frame = route->receiver->Receive(Soon());
  ASSERT_TRUE(frame.ok());
  EXPECT_FALSE(sender.HasCredit()) << "receiving alone gives no credit back";
  ASSERT_TRUE(route->receiver->Acknowledge(*frame, BucketAck{.bucket = 0}).ok());
  ASSERT_TRUE(sender.NextAck(Soon()).ok());
  EXPECT_TRUE(sender.HasCredit());
}

TEST_P(TransportContractTest, AllCreditsCanBeOutWhileNobodyReceives) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/64, kMaxCredits));
  ASSERT_TRUE(route.ok()) << route.status().ToString();

  for (std::uint64_t number = 0; route->sender->HasCredit(); ++number) {
    ASSERT_TRUE(SendPattern(*route->sender, number, 64).ok());
  }
  std::vector<ReceivedFrame> frames;
  for (int i = 0; i < kMaxCredits; ++i) {
    const Result<ReceivedFrame> frame = route->receiver->Receive(Soon());
    ASSERT_TRUE(frame.ok()) << frame.status().ToString();
    frames.push_back(*frame);
  }
  for (const ReceivedFrame& frame : frames) ASSERT_TRUE(route->receiver->Acknowledge(frame, BucketAck{}).ok());

  for (int i = 0; i < kMaxCredits; ++i) ASSERT_TRUE(route->sender->NextAck(Soon()).ok());
}

TEST_P(TransportContractTest, AcknowledgementsComeBackInAnyOrderWithTheirVerdicts) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/128, /*credits=*/4));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  std::vector<ReceivedFrame> frames;
  for (std::uint64_t number = 0; number < 4; ++number) {
    ASSERT_TRUE(SendPattern(*route->sender, number, 128).ok());
    frames.push_back(route->receiver->Receive(Soon()).value());
  }
  const std::pair<std::size_t, BucketAck> acks[] = {
      {2, {.bucket = 102, .attempt = 0, .verdict = BucketVerdict::kGood}},
      {0, {.bucket = 100, .attempt = 1, .verdict = BucketVerdict::kDamaged}},
      {3, {.bucket = 0xffffffff, .attempt = 0, .verdict = BucketVerdict::kFenced}},
      {1, {.bucket = 101, .attempt = 7, .verdict = BucketVerdict::kDuplicate}}};

  for (const auto& [frame, ack] : acks) ASSERT_TRUE(route->receiver->Acknowledge(frames[frame], ack).ok());

  for (const auto& [frame, ack] : acks) {
    const Result<BucketAck> got = route->sender->NextAck(Soon());
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_EQ(*got, ack);
  }
}

TEST_P(TransportContractTest, AReceivedFrameKeepsItsBytesUntilItIsAcknowledged) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/4096, /*credits=*/2));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  ASSERT_TRUE(SendPattern(*route->sender, 0, 4096).ok());
  const ReceivedFrame kept = route->receiver->Receive(Soon()).value();

  for (std::uint64_t number = 1; number < 10; ++number) {
    ASSERT_TRUE(SendPattern(*route->sender, number, 4096).ok());
    const ReceivedFrame frame = route->receiver->Receive(Soon()).value();
    ASSERT_TRUE(route->receiver->Acknowledge(frame, BucketAck{}).ok());
    ASSERT_TRUE(route->sender->NextAck(Soon()).ok());
  }

  EXPECT_TRUE(HasPattern(kept.bytes, 0));
}

TEST_P(TransportContractTest, AFrameIsGivenBackOnlyOnce) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/128, /*credits=*/2));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  ASSERT_TRUE(SendPattern(*route->sender, 0, 128).ok());
  const ReceivedFrame frame = route->receiver->Receive(Soon()).value();
  ASSERT_TRUE(route->receiver->Acknowledge(frame, BucketAck{}).ok());

  EXPECT_EQ(route->receiver->Acknowledge(frame, BucketAck{}).reason(), "not_outstanding");

  ASSERT_TRUE(route->sender->NextAck(Soon()).ok());
  EXPECT_EQ(route->sender->NextAck(Shortly()).status().reason(), "deadline");
}

TEST_P(TransportContractTest, WaitsEndAtTheirDeadlineAndTheRouteLivesOn) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/128, /*credits=*/1));
  ASSERT_TRUE(route.ok()) << route.status().ToString();

  const Status receive = route->receiver->Receive(Shortly()).status();
  const Status ack = route->sender->NextAck(Shortly()).status();
  const Status accept = world_->listener().Accept(kConnection, Route{1, 0}, Shortly()).status();

  EXPECT_EQ(receive.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ack.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(accept.code(), StatusCode::kDeadlineExceeded);
  ASSERT_TRUE(SendPattern(*route->sender, 0, 128).ok());
  EXPECT_TRUE(route->receiver->Receive(Soon()).ok());
}

TEST_P(TransportContractTest, CancelWakesAWaitingReceiverAndLasts) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/128, /*credits=*/1));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  Status woken;
  {
    Worker waiting("receive", [&](std::stop_token) { woken = route->receiver->Receive(Soon()).status(); });
    route->receiver->Cancel();
  }

  EXPECT_EQ(woken.code(), StatusCode::kCancelled);
  ASSERT_TRUE(SendPattern(*route->sender, 0, 128).ok());
  EXPECT_EQ(route->receiver->Receive(Soon()).status().code(), StatusCode::kCancelled);
}

TEST_P(TransportContractTest, CancelWakesAWaitingSenderAndLasts) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/128, /*credits=*/1));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  Status woken;
  {
    Worker waiting("next_ack", [&](std::stop_token) { woken = route->sender->NextAck(Soon()).status(); });
    route->sender->Cancel();
  }

  EXPECT_EQ(woken.code(), StatusCode::kCancelled);
  EXPECT_EQ(route->sender->NextAck(Soon()).status().code(), StatusCode::kCancelled);
}

TEST_P(TransportContractTest, ASenderThatClosesIsLostToAWaitingReceiver) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/128, /*credits=*/1));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  Status woken;
  {
    Worker waiting("receive", [&](std::stop_token) { woken = route->receiver->Receive(Soon()).status(); });
    route->sender.reset();
  }

  EXPECT_EQ(woken.code(), StatusCode::kUnavailable);
  EXPECT_EQ(woken.reason(), "peer_lost");
}

TEST_P(TransportContractTest, AReceiverThatClosesIsLostToTheSender) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/128, /*credits=*/4));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  Status woken;
  {
    Worker waiting("next_ack", [&](std::stop_token) { woken = route->sender->NextAck(Soon()).status(); });
    route->receiver.reset();
  }

  EXPECT_EQ(woken.reason(), "peer_lost");
  EXPECT_EQ(SendPattern(*route->sender, 0, 128).reason(), "peer_lost");
}

TEST_P(TransportContractTest, AReceivedFrameStaysReadableAfterItsSenderIsGone) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/4096, /*credits=*/1));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  ASSERT_TRUE(SendPattern(*route->sender, 3, 4096).ok());
  const ReceivedFrame frame = route->receiver->Receive(Soon()).value();

  route->sender.reset();

  EXPECT_EQ(route->receiver->Receive(Soon()).status().reason(), "peer_lost");
  EXPECT_TRUE(HasPattern(frame.bytes, 3));
}

TEST_P(TransportContractTest, AnUnknownConnectionIsRefused) {
  const Status status = world_->dialer().Dial(world_->listener().endpoint(), HelloOf(128, 1), Soon()).status();

  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(status.reason(), "unknown_connection");
}

TEST_P(TransportContractTest, ARouteIsHandedOutOnce) {
  Result<OpenRoute> route = Open(*world_, HelloOf(128, 1));
  ASSERT_TRUE(route.ok()) << route.status().ToString();

  EXPECT_EQ(world_->listener().Accept(kConnection, Route{0, 0}, Shortly()).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(world_->dialer().Dial(world_->listener().endpoint(), HelloOf(128, 1), Soon()).status().reason(),
            "route_taken");
  ASSERT_TRUE(SendPattern(*route->sender, 0, 128).ok());
  EXPECT_TRUE(route->receiver->Receive(Soon()).ok()) << "the first route is as it was";
}

TEST_P(TransportContractTest, ForgettingAConnectionDropsItsWaitingRoutesAndRefusesNewOnes) {
  world_->listener().Expect(kConnection);
  Result<std::unique_ptr<BucketSender>> sender =
      world_->dialer().Dial(world_->listener().endpoint(), HelloOf(128, 1), Soon());
  ASSERT_TRUE(sender.ok()) << sender.status().ToString();

  world_->listener().Forget(kConnection);

  EXPECT_EQ((*sender)->NextAck(Soon()).status().reason(), "peer_lost");
  EXPECT_EQ(world_->listener().Accept(kConnection, Route{0, 0}, Soon()).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(world_->dialer().Dial(world_->listener().endpoint(), HelloOf(128, 1), Soon()).status().reason(),
            "unknown_connection");
}

TEST_P(TransportContractTest, ForgettingAConnectionWakesAWaitingAcceptAndKeepsItsOpenRoutes) {
  Result<OpenRoute> route = Open(*world_, HelloOf(128, 1));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  Status woken;
  {
    Worker waiting("accept", [&](std::stop_token) {
      woken = world_->listener().Accept(kConnection, Route{1, 1}, Soon()).status();
    });
    world_->listener().Forget(kConnection);
  }

  EXPECT_EQ(woken.code(), StatusCode::kCancelled);
  ASSERT_TRUE(SendPattern(*route->sender, 0, 128).ok());
  EXPECT_TRUE(route->receiver->Receive(Soon()).ok());
}

TEST_P(TransportContractTest, HostileFrameSizesAndCreditsAreRefused) {
  world_->listener().Expect(kConnection);
  const std::pair<std::int64_t, std::int32_t> bad[] = {
      {0, 1},  {-1, 1},  {kMaxFrameBytes + 1, 1}, {std::int64_t{1} << 62, 1},
      {64, 0}, {64, -1}, {64, kMaxCredits + 1},   {kMaxFrameBytes, kMaxCredits}};

  for (const auto& [frame_bytes, credits] : bad) {
    const Status status =
        world_->dialer().Dial(world_->listener().endpoint(), HelloOf(frame_bytes, credits), Soon()).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << frame_bytes << " x " << credits;
    EXPECT_EQ(status.reason(), "bad_route");
  }
  EXPECT_TRUE(world_->dialer().Dial(world_->listener().endpoint(), HelloOf(64, 1), Soon()).ok())
      << "a refusal leaves the route free";
}

TEST_P(TransportContractTest, NobodyListeningIsUnreachable) {
  const TransportEndpoint endpoint = world_->listener().endpoint();
  world_->CloseListener();

  const Status status = world_->dialer().Dial(endpoint, HelloOf(128, 1), Soon()).status();

  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.reason(), "peer_unreachable");
}

TEST_P(TransportContractTest, AListenerThatGoesDropsTheRoutesNobodyAccepted) {
  world_->listener().Expect(kConnection);
  Result<std::unique_ptr<BucketSender>> sender =
      world_->dialer().Dial(world_->listener().endpoint(), HelloOf(128, 1), Soon());
  ASSERT_TRUE(sender.ok()) << sender.status().ToString();

  world_->CloseListener();

  EXPECT_EQ((*sender)->NextAck(Soon()).status().reason(), "peer_lost");
}

TEST_P(TransportContractTest, TwoRoutesOfOneConnectionRunSideBySide) {
  RouteHello hello = HelloOf(/*frame_bytes=*/4096, /*credits=*/2);
  std::vector<OpenRoute> routes;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    hello.route = {.sender_rank = rank, .engine_rank = 1 - rank};
    Result<OpenRoute> route = Open(*world_, hello);
    ASSERT_TRUE(route.ok()) << route.status().ToString();
    routes.push_back(*std::move(route));
  }
  std::vector<std::uint64_t> good(2, 0);

  {
    std::vector<Worker> workers;
    for (std::size_t r = 0; r < 2; ++r) {
      workers.emplace_back("send", [&, r](std::stop_token) {
        for (std::uint64_t number = 0; number < 50; ++number) {
          if (!routes[r].sender->HasCredit() && !routes[r].sender->NextAck(Soon()).ok()) return;
          if (!SendPattern(*routes[r].sender, 1000 * r + number, 4096).ok()) return;
        }
        while (routes[r].sender->NextAck(Shortly()).ok()) continue;
      });
      workers.emplace_back("receive", [&, r](std::stop_token) {
        for (std::uint64_t number = 0; number < 50; ++number) {
          const Result<ReceivedFrame> frame = routes[r].receiver->Receive(Soon());
          if (!frame.ok()) return;
          good[r] += HasPattern(frame->bytes, 1000 * r + number) ? 1 : 0;
          if (!routes[r].receiver->Acknowledge(*frame, BucketAck{}).ok()) return;
        }
      });
    }
  }

  EXPECT_EQ(good, (std::vector<std::uint64_t>{50, 50}));
}

// Sends `count` sealed buckets of many sizes; returns how many acknowledgements said kGood.
int SendBuckets(BucketSender& sender, SessionId session, std::uint32_t count) {
  int good = 0;
  std::uint32_t acked = 0;
  const auto take_ack = [&] {
    const Result<BucketAck> ack = sender.NextAck(Soon());
    if (!ack.ok()) return false;
    good += ack->verdict == BucketVerdict::kGood ? 1 : 0;
    ++acked;
    return true;
  };
  for (std::uint32_t bucket = 0; bucket < count; ++bucket) {
    if (!sender.HasCredit() && !take_ack()) return good;
    const std::int64_t payload_bytes = bucket * 7919 % (sender.frame_bytes() - 64);
    const auto frame = sender.Acquire().first(static_cast<std::size_t>(FrameBytes(0, payload_bytes)));
    FillPattern(frame, bucket);
    SealBucketFrame({.session = session, .bucket = bucket, .payload_bytes = payload_bytes, .has_checksum = true},
                    frame);
    if (!sender.Send(frame.size()).ok()) return good;
  }
  while (acked < count && take_ack()) continue;
  return good;
}

// Takes `count` buckets, checks them, and acknowledges each two frames late, so that several are out at all times.
void TakeBuckets(BucketReceiver& receiver, SessionId session, std::uint32_t count) {
  std::vector<std::pair<ReceivedFrame, BucketAck>> held;
  for (std::uint32_t bucket = 0; bucket < count; ++bucket) {
    const Result<ReceivedFrame> frame = receiver.Receive(Soon());
    if (!frame.ok()) return;
    const Result<BucketHeader> header = ParseBucketHeader(frame->bytes);
    const bool good = header.ok() && header->session == session && header->bucket == bucket &&
                      CheckPayload(*header, frame->bytes).ok();
    held.emplace_back(*frame,
                      BucketAck{.bucket = bucket, .verdict = good ? BucketVerdict::kGood : BucketVerdict::kDamaged});
    if (held.size() < 3 && bucket + 1 < count) continue;
    std::reverse(held.begin(), held.end());
    for (const auto& [late, ack] : held) {
      if (!receiver.Acknowledge(late, ack).ok()) return;
    }
    held.clear();
  }
}

TEST_P(TransportContractTest, AThousandBucketsArriveWithRightChecksumsThoughAcknowledgedOutOfOrder) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/16 << 10, /*credits=*/4));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  int good = 0;

  {
    Worker sending("send", [&](std::stop_token) { good = SendBuckets(*route->sender, SessionId{1}, 1000); });
    TakeBuckets(*route->receiver, SessionId{1}, 1000);
  }

  EXPECT_EQ(good, 1000);
}

TEST_P(TransportContractTest, ARouteIsUsedAgainAfterASessionThatWasFenced) {
  Result<OpenRoute> route = Open(*world_, HelloOf(/*frame_bytes=*/4096, /*credits=*/4));
  ASSERT_TRUE(route.ok()) << route.status().ToString();
  for (std::uint64_t number = 0; number < 3; ++number) {
    ASSERT_TRUE(SendPattern(*route->sender, number, 4096).ok());
    const ReceivedFrame frame = route->receiver->Receive(Soon()).value();
    const BucketAck fenced{.bucket = static_cast<std::uint32_t>(number), .verdict = BucketVerdict::kFenced};
    ASSERT_TRUE(route->receiver->Acknowledge(frame, fenced).ok());
  }
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(route->sender->NextAck(Soon()).value().verdict, BucketVerdict::kFenced);
  }
  int good = 0;

  {
    Worker sending("send", [&](std::stop_token) { good = SendBuckets(*route->sender, SessionId{2}, 20); });
    TakeBuckets(*route->receiver, SessionId{2}, 20);
  }

  EXPECT_EQ(good, 20);
}

TEST_P(TransportContractTest, ClosedRoutesLeaveNoDescriptorThreadOrMapping) {
  const auto use_routes = [&](std::uint64_t connection) {
    RouteHello hello = HelloOf(/*frame_bytes=*/64 << 10, /*credits=*/4);
    hello.connection = connection;
    Result<OpenRoute> route = Open(*world_, hello);
    ASSERT_TRUE(route.ok()) << route.status().ToString();
    ASSERT_TRUE(SendPattern(*route->sender, 0, 64 << 10).ok());
    ASSERT_TRUE(route->receiver->Receive(Soon()).ok());
    world_->listener().Forget(connection);
    if (connection % 2 == 0) route->receiver.reset();  // either end may go first
  };
  // The first routes may start what a process keeps, such as a library's own threads.
  for (std::uint64_t connection = 1; connection <= 4; ++connection) use_routes(connection);
  ASSERT_TRUE(Eventually([] { return MappingsOf("memfd:bascule") == 0; }, Soon()));
  const std::size_t descriptors = OpenDescriptors();
  const std::size_t threads = RunningThreads();

  for (std::uint64_t connection = 5; connection <= 36; ++connection) use_routes(connection);

  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= descriptors; }, Soon()))
      << OpenDescriptors() << " descriptors, before " << descriptors;
  EXPECT_TRUE(Eventually([&] { return RunningThreads() <= threads + GetParam().pool_threads; }, Soon()))
      << RunningThreads() << " threads, before " << threads;
  EXPECT_TRUE(Eventually([] { return MappingsOf("memfd:bascule") == 0; }, Soon()));
}

}  // namespace
}  // namespace bascule
