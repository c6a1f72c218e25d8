#include "bridge/send/control_inbox.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/worker.h"
#include "bridge/session/loopback/loopback_control.h"
#include "tests/support/fake_clock.h"
#include "tests/support/process_census.h"

namespace bascule {
namespace {

// Refused by the peer before anything was sent.
class RefusedChannel final : public ControlChannel {
 public:
  Status Send(const SessionMessage&) override {
    return cancelled_ ? Status::Unavailable("peer_lost", peer()) : OkStatus();
  }
  Result<SessionMessage> Receive(Deadline) override { return Status::Unauthenticated("unauthenticated", "no token"); }
  void StopReceiving() override {}
  void Cancel() override { cancelled_ = true; }
  std::string peer() const override { return "peer"; }

 private:
  std::atomic<bool> cancelled_ = false;
};

class ControlInboxTest : public testing::Test {
 protected:
  ControlInboxTest() {
    auto [mine, peers] = MakeLoopbackChannel(clock_);
    peer_ = std::move(peers);
    inbox_ = std::make_unique<ControlInbox>(std::move(mine), clock_);
  }
  Deadline Soon() { return Deadline::After(clock_, std::chrono::seconds(100)); }
  bool EventuallyNotQuiet() {
    return Eventually([&] { return !inbox_->Quiet(); }, Deadline::After(Clock::Real(), std::chrono::seconds(30)));
  }

  FakeClock clock_;
  std::unique_ptr<ControlChannel> peer_;
  std::unique_ptr<ControlInbox> inbox_;
};

TEST_F(ControlInboxTest, WhatThePeerSaidBeforeItWentIsHeardFirst) {
  ASSERT_TRUE(peer_->Send(Abort{.session = {.value = 3}, .why = Status::DataLoss("scripted")}).ok());
  peer_.reset();

  const auto message = inbox_->Next(Soon(), {});
  const auto after = inbox_->Next(Soon(), {});

  ASSERT_TRUE(message.ok());
  EXPECT_EQ(std::get<Abort>(**message).why.reason(), "scripted");
  EXPECT_EQ(after.status().reason(), "peer_lost");
}

TEST_F(ControlInboxTest, WhoSendsToAPeerThatHasRefusedLearnsWhyItDid) {
  inbox_ = std::make_unique<ControlInbox>(std::make_unique<RefusedChannel>(), clock_);

  Status sent;
  const bool failed = Eventually([&] { return !(sent = inbox_->Send(Abort{})).ok(); },
                                 Deadline::After(Clock::Real(), std::chrono::seconds(30)));

  EXPECT_TRUE(failed);
  EXPECT_EQ(sent.reason(), "unauthenticated");
}

TEST_F(ControlInboxTest, APeerThatGoesBetweenSessionsIsNoticed) {
  EXPECT_TRUE(inbox_->Quiet());

  peer_.reset();

  EXPECT_TRUE(EventuallyNotQuiet());
}

TEST_F(ControlInboxTest, AWaitEndsWhenItsWorkIsDone) {
  std::atomic<bool> done = false;
  Worker work("work", [&](std::stop_token) {
    done = true;
    inbox_->Wake();
  });

  const auto message = inbox_->Next(Soon(), {}, [&] { return done.load(); });

  ASSERT_TRUE(message.ok());
  EXPECT_FALSE(message->has_value());
}

TEST_F(ControlInboxTest, AWaitEndsWhenItIsStopped) {
  std::stop_source stop;
  Worker stopper("stopper", [&](std::stop_token) { stop.request_stop(); });

  EXPECT_EQ(inbox_->Next(Soon(), stop.get_token()).status().reason(), "cancelled");
}

TEST_F(ControlInboxTest, AWaitEndsAtItsDeadline) {
  const Deadline deadline = Soon();
  Worker timer("timer", [&](std::stop_token) { clock_.Advance(std::chrono::seconds(101)); });

  EXPECT_EQ(inbox_->Next(deadline, {}).status().reason(), "deadline");
}

TEST_F(ControlInboxTest, APeerThatFloodsIsCutOffAtABound) {
  int sent = 0;
  while (sent < 100 && peer_->Send(Accept{}).ok()) ++sent;

  int heard = 0;
  Status end;
  ASSERT_TRUE(EventuallyNotQuiet());
  // Nothing is taken out until the bound was met.
  ASSERT_TRUE(Eventually([&] { return !peer_->Send(Accept{}).ok(); },
                         Deadline::After(Clock::Real(), std::chrono::seconds(30))));
  while (end.ok()) {
    const auto message = inbox_->Next(Soon(), {});
    end = message.status();
    heard += message.ok() ? 1 : 0;
  }

  EXPECT_LT(heard, 100);
  EXPECT_EQ(end.reason(), "bad_message");
}

}  // namespace
}  // namespace bascule
