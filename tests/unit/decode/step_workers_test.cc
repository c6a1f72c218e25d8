#include "engine_side/decode/step_workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

namespace bascule {
namespace {

constexpr double kShared = 1e9;  // long enough to be shared
constexpr double kTrifle = 1;

TEST(StepWorkersTest, EveryItemIsDoneOnceAndAllAreDoneOnReturn) {
  for (const int threads : {1, 2, 3, 8}) {
    StepWorkers workers(threads);
    for (std::int64_t items = 0; items < 300; ++items) {
      std::vector<int> done(static_cast<std::size_t>(items));

      workers.ForRanges(items, 1 + items % 7, kShared, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) ++done[static_cast<std::size_t>(i)];
      });

      ASSERT_EQ(done, std::vector<int>(static_cast<std::size_t>(items), 1)) << threads << " threads";
    }
  }
}

TEST(StepWorkersTest, ManyMoreItemsThanOneJobHasRangesAreAllDone) {
  StepWorkers workers(3);
  std::atomic<std::int64_t> sum = 0;

  workers.ForRanges(1'000'000, 1, kShared, [&](std::int64_t begin, std::int64_t end, int) {
    std::int64_t part = 0;
    for (std::int64_t i = begin; i < end; ++i) part += i;
    sum += part;
  });

  EXPECT_EQ(sum, std::int64_t{1'000'000} * 999'999 / 2);
}

TEST(StepWorkersTest, NoTwoThreadsWorkUnderOneNumberAtOnce) {
  StepWorkers workers(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> clash = false;

  workers.ForRanges(2000, 1, kShared, [&](std::int64_t, std::int64_t, int thread) {
    if (inside[static_cast<std::size_t>(thread)].fetch_add(1) != 0) clash = true;
    inside[static_cast<std::size_t>(thread)].fetch_sub(1);
  });

  EXPECT_FALSE(clash);
}

TEST(StepWorkersTest, WorkThatIsNotWorthSharingIsOneRangeOnTheCaller) {
  StepWorkers workers(2);
  int calls = 0;

  workers.ForRanges(100, 1, kTrifle, [&](std::int64_t begin, std::int64_t end, int thread) {
    EXPECT_TRUE(begin == 0 && end == 100 && thread == 0);
    ++calls;
  });

  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace bascule
