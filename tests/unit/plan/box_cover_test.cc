#include "bridge/plan/box_cover_internal.h"

#include <gtest/gtest.h>

#include <map>

#include "bridge/plan/box_index_internal.h"
#include "tests/unit/plan/random_layouts.h"

namespace bascule {
namespace {

Dims RandomShape(std::mt19937_64& random) {
  Dims shape;
  for (auto d = random() % 4; d > 0; --d) shape.push_back(1 + static_cast<std::int64_t>(random() % 6));
  return shape;
}

Box RandomBox(std::mt19937_64& random, const Dims& shape) {
  Box box = Box::Whole(shape);
  for (int d = 0; d < shape.size(); ++d) {
    box.offset[d] = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape[d]));
    box.extent[d] = 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape[d] - box.offset[d]));
  }
  return box;
}

// How many boxes have each element, by counting.
std::vector<int> CountsOf(const Dims& shape, const std::vector<Box>& boxes) {
  std::vector<int> counts(static_cast<std::size_t>(Box::Whole(shape).Elements()));
  for (const Box& box : boxes) {
    for (const std::int64_t position : PositionsOf(box, shape)) ++counts[static_cast<std::size_t>(position)];
  }
  return counts;
}

TEST(BoxCoverTest, ABreachIsFoundExactlyWhenCountingFindsOne) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed=" << seed);
    std::mt19937_64 random(seed);
    const Dims shape = RandomShape(random);
    const std::int64_t elements = Box::Whole(shape).Elements();
    const auto cut = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(elements + 1));
    std::vector<Box> boxes = BoxesOfRange(shape, 0, cut);
    for (const Box& box : BoxesOfRange(shape, cut, elements)) boxes.push_back(box);
    if (random() % 2 == 0) boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(random() % boxes.size()));
    if (random() % 2 == 0) boxes.push_back(RandomBox(random, shape));
    const std::vector<int> counts = CountsOf(shape, boxes);
    const bool exact = std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; });

    const std::optional<CoverBreach> breach = FindBreach(Box::Whole(shape), boxes);

    ASSERT_EQ(breach.has_value(), !exact);
    if (!breach) continue;
    for (const std::int64_t position : PositionsOf(breach->box, shape)) {
      const int count = counts[static_cast<std::size_t>(position)];
      ASSERT_TRUE(breach->kind == CoverBreach::Kind::kHole ? count == 0 : count > 1) << breach->box.ToString();
    }
  }
}

TEST(BoxCoverTest, CellsAreDisjointAndNameEveryBoxThatHasThem) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed=" << seed);
    std::mt19937_64 random(seed);
    const Dims shape = RandomShape(random);
    std::vector<Box> boxes;
    for (auto n = 1 + random() % 5; n > 0; --n) {
      boxes.push_back(!boxes.empty() && random() % 3 == 0 ? boxes.back() : RandomBox(random, shape));
    }
    std::map<std::int64_t, std::vector<std::int32_t>> expected;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      for (const std::int64_t position : PositionsOf(boxes[i], shape)) {
        expected[position].push_back(static_cast<std::int32_t>(i));
      }
    }

    std::map<std::int64_t, std::vector<std::int32_t>> found;
    for (const Cell& cell : DisjointCells(boxes)) {
      for (const std::int64_t position : PositionsOf(cell.box, shape)) {
        ASSERT_TRUE(found.emplace(position, cell.holders).second) << "in two cells: " << cell.box.ToString();
      }
    }

    ASSERT_EQ(found, expected);
  }
}

TEST(BoxCoverTest, BoxesThatOnlyEqualOrTouchStayWhole) {
  const std::vector<Cell> cells =
      DisjointCells(std::vector<Box>{{{0, 0}, {2, 4}}, {{2, 0}, {5, 4}}, {{0, 0}, {2, 4}}, {{0, 4}, {7, 1}}});

  ASSERT_EQ(cells.size(), 3U);
  EXPECT_EQ(cells[0].box.ToString(), "[0:2, 0:4]");
  EXPECT_EQ(cells[0].holders, (std::vector<std::int32_t>{0, 2}));
}

TEST(BoxCoverTest, ManyRowsAndColumnsTakeAboutAsManySteps) {
  // A grid of 300 x 300 boxes of 2^20 x 2^20 elements each: bitmaps could not hold it, pairs would be 4 * 10^9.
  constexpr std::int64_t kSide = std::int64_t{1} << 20;
  std::vector<Box> boxes;
  for (std::int64_t row = 0; row < 300; ++row) {
    for (std::int64_t column = 0; column < 300; ++column)
      boxes.push_back({{row * kSide, column * kSide}, {kSide, kSide}});
  }
  const Box region = Box::Whole({300 * kSide, 300 * kSide});

  EXPECT_FALSE(FindBreach(region, boxes));
  boxes[12345].extent[1] -= 1;
  const std::optional<CoverBreach> breach = FindBreach(region, boxes);

  ASSERT_TRUE(breach);
  EXPECT_EQ(breach->kind, CoverBreach::Kind::kHole);
  EXPECT_EQ(breach->box, (Box{{41 * kSide, 46 * kSide - 1}, {kSide, 1}}));
}

TEST(BoxIndexTest, FindsExactlyTheBoxesThatIntersect) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed=" << seed);
    std::mt19937_64 random(seed);
    const Dims shape = RandomShape(random);
    std::vector<Box> boxes;
    for (auto n = random() % 12; n > 0; --n) boxes.push_back(RandomBox(random, shape));
    const Box query = RandomBox(random, shape);
    std::vector<std::int32_t> expected;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      if (Intersect(boxes[i], query)) expected.push_back(static_cast<std::int32_t>(i));
    }

    ASSERT_EQ(BoxIndex(boxes).Overlapping(query), expected);
  }
}

}  // namespace
}  // namespace bascule
