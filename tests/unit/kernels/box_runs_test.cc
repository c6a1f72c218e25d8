#include <gtest/gtest.h>

#include "kernels/box_runs_internal.h"
#include "tests/unit/kernels/random_boxes.h"

namespace bascule {
namespace {

template <std::size_t kPlaces>
std::int64_t CountRuns(const BoxRuns<kPlaces>& runs) {
  std::int64_t count = 0;
  runs.ForEach([&](const auto&) { ++count; });
  return count;
}

TEST(BoxRunsTest, AWholeTensorIsOneRun) {
  const BoxShape shape{4, {3, 5, 1, 7}};

  const BoxRuns<2> runs(shape, {RowMajorPlace(shape), RowMajorPlace(shape)});

  EXPECT_EQ(runs.run_elements(), 3 * 5 * 7);
  EXPECT_EQ(CountRuns(runs), 1);
}

TEST(BoxRunsTest, ACutOfTheFirstDimensionIsOneRunAndACutOfTheLastIsOneRunARow) {
  const BoxPlace place{8, {4, 1}};

  EXPECT_EQ(CountRuns(BoxRuns<1>(BoxShape{2, {3, 4}}, {place})), 1);
  EXPECT_EQ(CountRuns(BoxRuns<1>(BoxShape{2, {3, 2}}, {place})), 3);
}

TEST(BoxRunsTest, DimensionsMergeOnlyWhereEveryPlaceAllowsIt) {
  const BoxShape shape{2, {3, 4}};

  const BoxRuns<2> runs(shape, {BoxPlace{0, {4, 1}}, BoxPlace{0, {10, 1}}});

  EXPECT_EQ(runs.run_elements(), 4);
  EXPECT_EQ(CountRuns(runs), 3);
}

TEST(BoxRunsTest, AnEmptyDimensionHasNoRunsAndAScalarHasOne) {
  EXPECT_EQ(CountRuns(BoxRuns<1>(BoxShape{3, {2, 0, 3}}, {BoxPlace{0, {9, 3, 1}}})), 0);
  EXPECT_EQ(CountRuns(BoxRuns<1>(BoxShape{}, {BoxPlace{5, {}}})), 1);
}

TEST(BoxRunsTest, VisitsTheOffsetsOfEveryElementInRowMajorOrder) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const BoxShape shape = RandomShape(random, 5);
    std::int64_t unused = 0;
    const BoxPlace a = RandomPlace(random, shape, unused);
    const BoxPlace b = RandomPlace(random, shape, unused);

    const BoxRuns<2> runs(shape, {a, b});

    std::int64_t index = 0;
    runs.ForEach([&](const BoxRuns<2>::Offsets& first) {
      for (std::int64_t i = 0; i < runs.run_elements(); ++i, ++index) {
        ASSERT_EQ(first[0] + i * runs.run_stride(0), OffsetOf(shape, a, index));
        ASSERT_EQ(first[1] + i * runs.run_stride(1), OffsetOf(shape, b, index));
      }
    });
    ASSERT_EQ(index, shape.Elements());
  }
}

}  // namespace
}  // namespace bascule
