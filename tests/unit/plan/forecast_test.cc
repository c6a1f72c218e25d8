#include "bridge/plan/forecast.h"

#include <gtest/gtest.h>

#include "bridge/plan/planner.h"

namespace bascule {
namespace {

TEST(ForecastTest, BytesOfRoutesAndRanksAddUpToThePlan) {
  const std::vector<TensorSpec> tensors = {{"w", DType::kU8, {64, 512}}};
  Layout engine{.tensors = tensors, .ranks = std::vector<RankLayout>(2)};
  for (const std::int64_t r : {0, 1}) {
    RankLayout& rank = engine.ranks[static_cast<std::size_t>(r)];
    rank.tensors = {{"w", DType::kU8, {32, 512}, {}}};
    rank.rows = {{0, {{0, 0}, {32, 512}}, 0, {{32 * r, 0}, {32, 512}}}};
  }
  const Plan plan = *MakePlan(PlainLayout(tensors), engine, {.bucket_bytes = 4096, .ignore = {}});

  const Forecast forecast = ForecastOf(plan, engine, 4096, /*credits=*/4, {.link = 1000, .memory = 1024});

  ASSERT_EQ(forecast.routes.size(), 2u);
  EXPECT_EQ(forecast.routes[0].bytes, 16384);
  EXPECT_EQ(forecast.routes[0].buckets, 4);
  EXPECT_EQ(forecast.trainer_bytes, (std::vector<std::int64_t>{32768}));
  EXPECT_EQ(forecast.engine_bytes, (std::vector<std::int64_t>{16384, 16384}));
  EXPECT_EQ(forecast.slot_bytes, 16384);
  EXPECT_EQ(forecast.frames_bytes, 4 * 4096);
  EXPECT_DOUBLE_EQ(forecast.transfer_seconds, 32.768);
}

TEST(ForecastTest, ShadowTakesASlotAndNoTimeAndInPlaceTheOtherWayRound) {
  const Layout layout = PlainLayout({{"w", DType::kU8, {1024}}});
  const Plan plan = *MakePlan(layout, layout, {});

  const Forecast forecast = ForecastOf(plan, layout, 4096, 4, {.link = 1000, .memory = 1024});

  ASSERT_EQ(forecast.flips.size(), 3u);
  EXPECT_EQ(forecast.flips[0].device_bytes, 1024);
  EXPECT_EQ(forecast.flips[0].stall_seconds, 0);
  EXPECT_EQ(forecast.flips[1].device_bytes, 2048);
  EXPECT_EQ(forecast.flips[2].device_bytes, 0);
  EXPECT_EQ(forecast.flips[2].host_bytes, 1024);
  EXPECT_DOUBLE_EQ(forecast.flips[2].stall_seconds, 2);
}

}  // namespace
}  // namespace bascule
