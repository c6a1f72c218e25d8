#include "bridge/send/send_pacer.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/worker.h"
#include "tests/support/fake_clock.h"

namespace bascule {
namespace {

constexpr Duration kSecond = std::chrono::seconds(1);

class SendPacerTest : public testing::Test {
 protected:
  Deadline In(Duration time) { return Deadline::After(clock_, time); }

  FakeClock clock_;
  SendPacer pacer_{1000, clock_};
  std::stop_source stop_;
};

TEST_F(SendPacerTest, TheFirstFrameGoesAtOnceAndTheNextWhenItsTimeHasPassed) {
  EXPECT_TRUE(pacer_.Pass(2000, In(kSecond), stop_.get_token()).ok());
  std::atomic<bool> passed = false;
  Worker second("second", [&](std::stop_token) {
    EXPECT_TRUE(pacer_.Pass(1000, In(10 * kSecond), stop_.get_token()).ok());
    passed = true;
  });
  clock_.Advance(2 * kSecond - std::chrono::milliseconds(1));
  EXPECT_FALSE(passed);
  clock_.Advance(std::chrono::milliseconds(1));
  second.Join();
  EXPECT_TRUE(passed);
}

TEST_F(SendPacerTest, AnIdleTimeBuysNoBurst) {
  EXPECT_TRUE(pacer_.Pass(1000, In(kSecond), stop_.get_token()).ok());
  clock_.Advance(100 * kSecond);
  EXPECT_TRUE(pacer_.Pass(1000, In(Duration::zero()), stop_.get_token()).ok());
  stop_.request_stop();
  EXPECT_EQ(pacer_.Pass(1000, In(kSecond), stop_.get_token()).reason(), "cancelled");
}

TEST_F(SendPacerTest, AFrameWhoseTurnComesAfterTheDeadlineWaitsNoLongerThanThat) {
  EXPECT_TRUE(pacer_.Pass(5000, In(kSecond), stop_.get_token()).ok());
  const Deadline deadline = In(kSecond);
  Status status;
  Worker waits("waits", [&](std::stop_token) { status = pacer_.Pass(1, deadline, stop_.get_token()); });
  clock_.Advance(kSecond);
  waits.Join();
  EXPECT_EQ(status.reason(), "deadline");
}

TEST_F(SendPacerTest, AStopEndsTheWait) {
  EXPECT_TRUE(pacer_.Pass(5000, In(kSecond), stop_.get_token()).ok());
  Status status;
  Worker waits("waits", [&](std::stop_token) { status = pacer_.Pass(1, In(9 * kSecond), stop_.get_token()); });
  stop_.request_stop();
  waits.Join();
  EXPECT_EQ(status.reason(), "cancelled");
}

}  // namespace
}  // namespace bascule
