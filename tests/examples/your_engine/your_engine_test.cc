// The safe point of the example's engine: what engine_side/engine_hooks.h asks of it.
#include "examples/04_your_engine/your_engine.h"

#include <gtest/gtest.h>

namespace your {
namespace {

using namespace bascule;

class YourEngineTest : public testing::Test {
 protected:
  // Steps go by, though nothing is live.
  void Decode() {
    engine_.Start([] { return WeightLease(); });
    engine_.Submit({1});
  }
  static Deadline In(Duration time) { return Deadline::After(Clock::Real(), time); }

  Engine engine_;
  bool called_ = false;
};

TEST_F(YourEngineTest, WhereNothingDecodesEveryMomentIsASafePoint) {
  const auto point = engine_.RunAtSafePoint(/*at_step=*/1000, [this] { called_ = true; }, In(std::chrono::seconds(60)));

  ASSERT_TRUE(point.ok());
  EXPECT_TRUE(called_);
  EXPECT_EQ(point->stall, Duration::zero());
}

TEST_F(YourEngineTest, AFlipHasItsGapNotBeforeTheStepThatItNames) {
  Decode();

  const auto now = engine_.RunAtSafePoint(/*at_step=*/0, [] {}, In(std::chrono::seconds(60)));
  ASSERT_TRUE(now.ok());
  const std::uint64_t wanted = now->next_step + 100'000;

  const auto point = engine_.RunAtSafePoint(
      wanted, [this] { called_ = engine_.Decoding(); }, In(std::chrono::seconds(60)));

  ASSERT_TRUE(point.ok());
  EXPECT_TRUE(called_);
  EXPECT_GE(point->next_step, wanted);  // later only where the engine was there before it was asked
}

TEST_F(YourEngineTest, NoSafePointInTimeMeansThatTheCriticalSectionIsNeverCalled) {
  Decode();

  const auto point = engine_.RunAtSafePoint(
      std::uint64_t{1} << 60, [this] { called_ = true; }, In(std::chrono::milliseconds(1)));

  EXPECT_EQ(point.status().reason(), "deadline");
  EXPECT_FALSE(called_);
  EXPECT_TRUE(engine_
                  .RunAtSafePoint(
                      0, [this] { called_ = true; }, In(std::chrono::seconds(60)))
                  .ok())
      << "the next";
  EXPECT_TRUE(called_);
}

}  // namespace
}  // namespace your
