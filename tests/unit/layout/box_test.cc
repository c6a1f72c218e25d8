#include "bridge/layout/box.h"

#include <gtest/gtest.h>

#include <random>

namespace bascule {
namespace {

// The flat positions of a box's elements in a row-major tensor, by walking a counter: the slow oracle.
std::vector<std::int64_t> PositionsOf(const Box& box, const Dims& shape) {
  std::vector<std::int64_t> positions;
  Dims index = Dims::Zeros(box.dims());
  for (std::int64_t n = 0; n < box.Elements(); ++n) {
    std::int64_t position = 0;
    for (int d = 0; d < box.dims(); ++d) position = position * shape[d] + box.offset[d] + index[d];
    positions.push_back(position);
    for (int d = box.dims() - 1; d >= 0 && ++index[d] == box.extent[d]; --d) index[d] = 0;
  }
  return positions;
}

// The positions that a shape and a place give, as a kernel reads them.
std::vector<std::int64_t> PositionsOf(const BoxShape& shape, const BoxPlace& place) {
  std::vector<std::int64_t> positions = {place.offset};
  if (shape.Elements() == 0) return {};
  for (std::size_t d = 0; d < static_cast<std::size_t>(shape.dims); ++d) {
    std::vector<std::int64_t> next;
    for (const std::int64_t position : positions) {
      for (std::int64_t i = 0; i < shape.count[d]; ++i) next.push_back(position + i * place.stride[d]);
    }
    positions = next;
  }
  return positions;
}

Dims RandomShape(std::mt19937& random, int dims_max) {
  Dims shape;
  const int dims = static_cast<int>(random() % static_cast<unsigned>(dims_max + 1));
  for (int d = 0; d < dims; ++d) shape.push_back(1 + static_cast<std::int64_t>(random() % 5));
  return shape;
}

Box RandomBox(std::mt19937& random, const Dims& shape) {
  Box box = Box::Whole(shape);
  for (int d = 0; d < shape.size(); ++d) {
    box.offset[d] = static_cast<std::int64_t>(random() % static_cast<unsigned>(shape[d]));
    box.extent[d] = 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(shape[d] - box.offset[d]));
  }
  return box;
}

TEST(BoxTest, AnElementRangeBecomesAtMostTwoNMinusOneBoxesInOrder) {
  const std::uint32_t seed = 20240611;
  SCOPED_TRACE(testing::Message() << "seed=" << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const Dims shape = RandomShape(random, 4);
    const std::int64_t elements = Box::Whole(shape).Elements();
    const auto begin = static_cast<std::int64_t>(random() % static_cast<unsigned>(elements + 1));
    const auto end = begin + static_cast<std::int64_t>(random() % static_cast<unsigned>(elements - begin + 1));

    const std::vector<Box> boxes = BoxesOfRange(shape, begin, end);

    std::vector<std::int64_t> positions;
    for (const Box& box : boxes) {
      for (const std::int64_t position : PositionsOf(box, shape)) positions.push_back(position);
    }
    ASSERT_EQ(positions.size(), static_cast<std::size_t>(end - begin))
        << shape.ToString() << " " << begin << ".." << end;
    for (std::size_t i = 0; i < positions.size(); ++i) ASSERT_EQ(positions[i], begin + static_cast<std::int64_t>(i));
    ASSERT_LE(boxes.size(), static_cast<std::size_t>(std::max(1, 2 * shape.size() - 1)));
  }
}

TEST(BoxTest, ACutKeepsRowMajorOrderAndTheLimit) {
  const std::uint32_t seed = 7;
  SCOPED_TRACE(testing::Message() << "seed=" << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    const Dims shape = RandomShape(random, 4);
    const Box box = RandomBox(random, shape);
    const std::int64_t elements_max = 1 + static_cast<std::int64_t>(random() % 40);

    std::vector<std::int64_t> positions;
    for (const Box& part : CutBox(box, elements_max)) {
      ASSERT_LE(part.Elements(), elements_max);
      for (const std::int64_t position : PositionsOf(part, shape)) positions.push_back(position);
    }

    ASSERT_EQ(positions, PositionsOf(box, shape)) << box.ToString() << " of " << shape.ToString();
  }
}

TEST(BoxTest, ACutFallsInTheOutermostDimensionThatAllowsIt) {
  const std::vector<Box> rows = CutBox(Box::Whole({5, 8}), 16);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].ToString(), "[0:2, 0:8]");
  EXPECT_EQ(rows[2].ToString(), "[4:5, 0:8]");

  const std::vector<Box> columns = CutBox(Box::Whole({2, 8}), 5);
  ASSERT_EQ(columns.size(), 4U);
  EXPECT_EQ(columns[1].ToString(), "[0:1, 5:8]");
}

TEST(BoxTest, ShapeAndPlaceVisitTheElementsOfTheBoxInOrder) {
  const std::uint32_t seed = 99;
  SCOPED_TRACE(testing::Message() << "seed=" << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 1000; ++round) {
    const Dims shape = RandomShape(random, 5);
    const Box box = RandomBox(random, shape);

    EXPECT_EQ(PositionsOf(ShapeOf(box), PlaceIn(box, shape)), PositionsOf(box, shape)) << box.ToString();
  }
}

TEST(BoxTest, OneShapeServesBoxesThatDifferInUnitDimensions) {
  const Box expert_of_stack{{2, 0, 4}, {1, 3, 2}};  // of [4, 3, 8]
  const Box expert_alone{{0, 1}, {3, 2}};           // of [3, 5]

  ASSERT_TRUE(SameElements(expert_of_stack, expert_alone));
  EXPECT_EQ(ShapeOf(expert_of_stack).dims, 2);
  EXPECT_EQ(PositionsOf(ShapeOf(expert_of_stack), PlaceIn(expert_alone, {3, 5})), PositionsOf(expert_alone, {3, 5}));
  EXPECT_EQ(CorrespondingBox({{2, 1, 5}, {1, 2, 1}}, expert_of_stack, expert_alone), (Box{{1, 2}, {2, 1}}));
  EXPECT_EQ(CorrespondingBox({{1, 2}, {2, 1}}, expert_alone, expert_of_stack), (Box{{2, 1, 5}, {1, 2, 1}}));
}

TEST(BoxTest, ScalarsAreOneElement) {
  EXPECT_EQ(Box::Whole({}).Elements(), 1);
  EXPECT_EQ(ShapeOf(Box::Whole({})).Elements(), 1);
  EXPECT_EQ(Intersect(Box::Whole({}), Box::Whole({})), Box::Whole({}));
  EXPECT_EQ(BoxesOfRange({}, 0, 1).size(), 1U);
  EXPECT_TRUE(BoxesOfRange({}, 0, 0).empty());
}

TEST(BoxTest, BoxesThatOnlyTouchShareNothing) {
  EXPECT_FALSE(Intersect({{0, 0}, {2, 4}}, {{2, 0}, {2, 4}}));
  EXPECT_FALSE(Intersect({{0}, {2}}, {{0, 0}, {2, 4}}));
  EXPECT_EQ(Intersect({{0, 1}, {3, 4}}, {{2, 0}, {2, 2}})->ToString(), "[2:3, 1:2]");
  EXPECT_TRUE(Contains({{0, 0}, {2, 4}}, {{1, 0}, {1, 4}}));
  EXPECT_FALSE(Contains({{0, 0}, {2, 4}}, {{1, 0}, {2, 4}}));
}

TEST(BoxTest, EmptyBoxesHoldTheSameElementsWhateverTheirExtents) {
  const Box empty{{7, 0}, {0, 4}};

  EXPECT_TRUE(empty.Empty());
  EXPECT_TRUE(SameElements(empty, {{0}, {0}}));
  EXPECT_FALSE(SameElements(empty, {{0}, {4}}));
  EXPECT_EQ(PlaceIn(empty, {4, 4}).offset, 0);
  EXPECT_FALSE(Intersect(empty, Box::Whole({8, 4})));
}

}  // namespace
}  // namespace bascule
