#include "bridge/session/loopback/loopback_control.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/worker.h"
#include "tests/support/fake_clock.h"

namespace bascule {
namespace {

using std::chrono::seconds;

class LoopbackControlTest : public ::testing::Test {
 protected:
  Deadline Soon() { return Deadline::After(clock_, seconds(10)); }
  static SessionId IdOf(const SessionMessage& message) { return std::get<Accept>(message).session; }

  FakeClock clock_;
};

TEST_F(LoopbackControlTest, MessagesArriveInOrderAndOnceInBothDirections) {
  auto [a, b] = MakeLoopbackChannel(clock_);
  ASSERT_TRUE(a->Send(Accept{SessionId{1}}).ok());
  ASSERT_TRUE(a->Send(Accept{SessionId{2}}).ok());
  ASSERT_TRUE(b->Send(Accept{SessionId{3}}).ok());

  EXPECT_EQ(IdOf(*b->Receive(Soon())), SessionId{1});
  EXPECT_EQ(IdOf(*b->Receive(Soon())), SessionId{2});
  EXPECT_EQ(IdOf(*a->Receive(Soon())), SessionId{3});
  EXPECT_EQ(b->Receive(Deadline::After(clock_, seconds(0))).status().reason(), "deadline");
}

TEST_F(LoopbackControlTest, WhatWasSentBeforeAnEndClosedStillArrivesThenThePeerIsLost) {
  auto [a, b] = MakeLoopbackChannel(clock_);
  ASSERT_TRUE(a->Send(Accept{SessionId{1}}).ok());

  a.reset();

  EXPECT_EQ(IdOf(*b->Receive(Soon())), SessionId{1});
  EXPECT_EQ(b->Receive(Soon()).status().reason(), "peer_lost");
  EXPECT_EQ(b->Send(Accept{}).reason(), "peer_lost");
}

TEST_F(LoopbackControlTest, CancelWakesAWaitingReceiverAtBothEnds) {
  auto [a, b] = MakeLoopbackChannel(clock_);
  Status at_a;
  Status at_b;
  {
    Worker wait_a("a", [&, end = a.get()](std::stop_token) { at_a = end->Receive(Soon()).status(); });
    Worker wait_b("b", [&, end = b.get()](std::stop_token) { at_b = end->Receive(Soon()).status(); });

    a->Cancel();
  }
  EXPECT_EQ(at_a.reason(), "cancelled");
  EXPECT_EQ(at_b.reason(), "peer_lost");
}

TEST_F(LoopbackControlTest, AnAddressWithoutListenerIsUnreachableAndOneInUseIsRefused) {
  LoopbackControl network(clock_);
  auto listener = network.Listen("engine", [](ControlChannel&) {});

  EXPECT_EQ(network.Dial("nobody", Soon()).status().reason(), "peer_unreachable");
  EXPECT_EQ(network.Listen("engine", [](ControlChannel&) {}).status().reason(), "address_in_use");

  listener->reset();
  EXPECT_EQ(network.Dial("engine", Soon()).status().reason(), "peer_unreachable");
}

TEST_F(LoopbackControlTest, EveryCallRunsItsHandlerAndThePeerIsLostWhenItReturns) {
  LoopbackControl network(clock_);
  auto listener = network.Listen("engine", [&](ControlChannel& channel) {
    const auto message = channel.Receive(Soon());
    ASSERT_TRUE(message.ok());
    EXPECT_TRUE(channel.Send(*message).ok());
  });
  auto caller = *network.Dial("engine", Soon());

  ASSERT_TRUE(caller->Send(Accept{SessionId{7}}).ok());

  EXPECT_EQ(IdOf(*caller->Receive(Soon())), SessionId{7});
  EXPECT_EQ(caller->Receive(Soon()).status().reason(), "peer_lost");
}

TEST_F(LoopbackControlTest, DestroyingTheListenerEndsItsRunningHandlers) {
  LoopbackControl network(clock_);
  std::atomic<int> returned{0};
  auto listener = *network.Listen("engine", [&](ControlChannel& channel) {
    EXPECT_FALSE(channel.Receive(Soon()).ok());
    ++returned;
  });
  auto first = *network.Dial("engine", Soon());
  auto second = *network.Dial("engine", Soon());

  listener.reset();

  EXPECT_EQ(returned, 2);
  EXPECT_EQ(first->Receive(Soon()).status().reason(), "peer_lost");
}

}  // namespace
}  // namespace bascule
