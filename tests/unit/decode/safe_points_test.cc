// Who is due when, and how long a stall was, at made-up times.
#include "engine_side/decode/safe_points.h"

#include <gtest/gtest.h>

namespace bascule {
namespace {

using std::chrono::milliseconds;

constexpr TimePoint At(int ms) { return TimePoint(milliseconds(ms)); }

class SafePointsTest : public testing::Test {
 protected:
  // The critical section of `call` lies between these two times, while requests run.
  void Stall(SafePoints::Call& call, TimePoint begin, TimePoint end) {
    points_.Begin(call, /*decoding=*/true, begin);
    points_.End(call, /*next_step=*/8, end);
  }

  SafePoints points_;
};

TEST_F(SafePointsTest, ACallIsDueBeforeItsStepAndWhereNothingDecodesAtOnce) {
  SafePoints::Call later{.at_step = 9, .result = {}}, sooner{.at_step = 7, .result = {}};
  points_.Add(later);
  points_.Add(sooner);

  EXPECT_EQ(points_.Due(6, /*idle=*/false), nullptr);
  EXPECT_EQ(points_.Due(7, /*idle=*/false), &sooner);
  EXPECT_EQ(points_.Due(9, /*idle=*/false), &later);
  EXPECT_EQ(points_.Due(0, /*idle=*/true), &later);
}

TEST_F(SafePointsTest, WhoGivesUpIsNotDue) {
  SafePoints::Call call;
  points_.Add(call);

  points_.Remove(call);

  EXPECT_EQ(points_.Due(0, /*idle=*/true), nullptr);
}

TEST_F(SafePointsTest, CriticalSectionsRunOneAtATime) {
  SafePoints::Call first, second;
  points_.Add(first);
  points_.Add(second);

  points_.Begin(first, /*decoding=*/true, At(0));
  EXPECT_TRUE(points_.critical_running());
  EXPECT_EQ(points_.Due(0, /*idle=*/true), nullptr);

  points_.End(first, 0, At(1));
  EXPECT_FALSE(points_.critical_running());
  EXPECT_EQ(points_.Due(0, /*idle=*/true), &second);
}

TEST_F(SafePointsTest, WhereNothingDecodesACallIsDoneAtItsEndAndNothingStalled) {
  SafePoints::Call call;
  points_.Add(call);

  points_.Begin(call, /*decoding=*/false, At(0));
  points_.End(call, /*next_step=*/3, At(20));

  EXPECT_EQ(call.state, SafePoints::Call::State::kDone);
  EXPECT_EQ(call.result.next_step, 3U);
  EXPECT_EQ(call.result.stall, Duration());
}

TEST_F(SafePointsTest, AStallLastsUntilTheNextStepComputes) {
  SafePoints::Call call;
  points_.Add(call);

  Stall(call, At(0), At(2));
  EXPECT_EQ(call.state, SafePoints::Call::State::kRunning);
  EXPECT_TRUE(points_.StepBegan(At(2), At(5)));

  EXPECT_EQ(call.state, SafePoints::Call::State::kDone);
  EXPECT_EQ(call.result.next_step, 8U);
  EXPECT_EQ(call.result.stall, milliseconds(5));
}

TEST_F(SafePointsTest, WhatBeginningAStepTakesAnywayIsNoStall) {
  SafePoints::Call call;
  points_.Add(call);
  EXPECT_FALSE(points_.StepBegan(At(0), At(8)));  // the mean is now an eighth of that: 1 ms

  Stall(call, At(10), At(12));
  points_.StepBegan(At(12), At(15));

  EXPECT_EQ(call.result.stall, milliseconds(4));
}

TEST_F(SafePointsTest, AStallIsNoShorterThanItsCriticalSection) {
  SafePoints::Call call;
  points_.Add(call);
  points_.StepBegan(At(0), At(80));  // 10 ms

  Stall(call, At(100), At(107));
  points_.StepBegan(At(107), At(108));

  EXPECT_EQ(call.result.stall, milliseconds(7));
}

TEST_F(SafePointsTest, CallsBetweenTheSameTwoStepsStallTogetherAndAFlipIsNotInTheMean) {
  SafePoints::Call first, second, next;
  points_.Add(first);
  points_.Add(second);
  points_.Add(next);

  Stall(first, At(0), At(2));
  Stall(second, At(3), At(5));
  points_.StepBegan(At(5), At(6));
  Stall(next, At(10), At(11));
  points_.StepBegan(At(11), At(12));

  EXPECT_EQ(first.result.stall, milliseconds(6));
  EXPECT_EQ(second.result.stall, milliseconds(3));
  EXPECT_EQ(next.result.stall, milliseconds(2));
}

TEST_F(SafePointsTest, AStallEndsWithDecoding) {
  SafePoints::Call call;
  points_.Add(call);

  Stall(call, At(0), At(2));
  points_.DecodingEnded(At(4));

  EXPECT_EQ(call.state, SafePoints::Call::State::kDone);
  EXPECT_EQ(call.result.stall, milliseconds(4));
}

}  // namespace
}  // namespace bascule
