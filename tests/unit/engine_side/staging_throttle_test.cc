#include "engine_side/staging_throttle.h"

#include <gtest/gtest.h>

#include "engine_side/latency_histogram.h"
#include "tests/support/fake_clock.h"

namespace bascule {
namespace {

using std::chrono::milliseconds;

constexpr Duration kStep = milliseconds(100);
constexpr double kSlowdown = 1.25;

class StagingThrottleTest : public testing::Test {
 protected:
  void Undisturbed(int steps, std::int64_t rows = 4, Duration took = kStep) {
    for (int i = 0; i < steps; ++i) EndStep(rows, took);
  }
  void EndStep(std::int64_t rows, Duration took) {
    clock_.Advance(took);
    throttle_.StepTook(rows, took);
  }
  // A machine where staging that works for a share of the time makes a step longer by `cost` times that share: stages
  // during one step as the throttle lets it, and returns how many times as long as undisturbed that took.
  double StageDuringAStep(double cost) {
    const Duration piece = milliseconds(1);
    const double share =
        static_cast<double>(piece.count()) / static_cast<double>((piece + throttle_.PauseAfter(piece)).count());
    const double grown = 1 + cost * share;
    const auto took = std::chrono::duration_cast<Duration>(kStep * grown);
    throttle_.PauseAfter(std::chrono::duration_cast<Duration>(took * share) - piece);
    EndStep(4, took);
    return grown;
  }

  FakeClock clock_;
  StagingThrottle throttle_{kSlowdown, clock_};
};

TEST_F(StagingThrottleTest, WhereNothingDecodesStagingNeverPauses) {
  EXPECT_EQ(throttle_.PauseAfter(milliseconds(10)), Duration::zero());
  Undisturbed(3);
  EXPECT_GT(throttle_.PauseAfter(milliseconds(10)), Duration::zero());

  clock_.Advance(std::chrono::seconds(1));

  EXPECT_EQ(throttle_.PauseAfter(milliseconds(10)), Duration::zero());
}

TEST_F(StagingThrottleTest, StepsGrowByNoMoreThanWantedOnceTheCostIsKnown) {
  for (const double cost : {0.3, 0.8, 1.5, 2.2}) {
    Undisturbed(3);
    for (int step = 0; step < 20; ++step) StageDuringAStep(cost);

    for (int step = 0; step < 20; ++step) EXPECT_LE(StageDuringAStep(cost), kSlowdown * 1.03) << cost;
    const double wanted = std::clamp((kSlowdown - 1) / cost, StagingThrottle::kLeastShare, 1.0);
    EXPECT_NEAR(throttle_.share(), wanted, 0.1 * wanted) << cost;
  }
}

TEST_F(StagingThrottleTest, AStagingThatCostsNothingIsLetLoose) {
  Undisturbed(3);

  for (int step = 0; step < 40; ++step) StageDuringAStep(0);

  EXPECT_EQ(throttle_.share(), 1.0);
  EXPECT_EQ(throttle_.PauseAfter(milliseconds(1)), Duration::zero());
}

TEST_F(StagingThrottleTest, HoweverMuchItCostsAVersionArrives) {
  Undisturbed(3);

  for (int step = 0; step < 100; ++step) StageDuringAStep(50);

  EXPECT_EQ(throttle_.share(), StagingThrottle::kLeastShare);
  EXPECT_LE(throttle_.PauseAfter(milliseconds(1)), milliseconds(9) + std::chrono::microseconds(1));
  EXPECT_LE(throttle_.PauseAfter(std::chrono::minutes(1)), milliseconds(200));  // a bound on one pause
}

TEST_F(StagingThrottleTest, AStepOfMoreRequestsIsNotTakenForAStepThatStagingHasSlowed) {
  Undisturbed(3, /*rows=*/1, milliseconds(20));
  const double before = throttle_.share();

  throttle_.PauseAfter(milliseconds(1));
  EndStep(/*rows=*/16, kStep);

  EXPECT_EQ(throttle_.share(), before);
}

TEST(LatencyHistogramTest, EachDurationIsInTheClassThatEndsAtOrAboveIt) {
  LatencyHistogram histogram;
  for (const double us : {-1.0, 0.0, 1.0, 1.001, 2.0, 2.5, 4.0, 1000.0, 1024.0, 1e30}) histogram.AddUs(us);

  EXPECT_EQ(histogram.counts()[0], 3U);
  EXPECT_EQ(histogram.counts()[1], 2U);
  EXPECT_EQ(histogram.counts()[2], 2U);
  EXPECT_EQ(histogram.counts()[10], 2U);
  EXPECT_EQ(histogram.counts()[LatencyHistogram::kClasses - 1], 1U);
  EXPECT_EQ(LatencyHistogram::UpToUs(10), 1024U);
}

}  // namespace
}  // namespace bascule
