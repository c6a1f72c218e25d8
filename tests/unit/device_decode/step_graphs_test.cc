#include "engine_side/decode/step_graphs.h"

#include <gtest/gtest.h>

#include <array>

namespace bascule {
namespace {

class NoGraph final : public DeviceGraph {
 public:
  explicit NoGraph(int& alive) : alive_(alive) { ++alive_; }
  ~NoGraph() override { --alive_; }

 private:
  int& alive_;
};

class StepGraphsTest : public testing::Test {
 protected:
  StepGraphs::Addresses Slot(std::size_t number) { return {&memory_[2 * number], &memory_[2 * number + 1]}; }
  DeviceGraph* FindOrAdd(std::size_t slot, std::int64_t rows) {
    DeviceGraph* const found = graphs_.Find(Slot(slot), rows);
    if (found == nullptr) graphs_.Add(rows, std::make_unique<NoGraph>(alive_));
    return found;
  }
  std::array<std::byte, 16> memory_{};
  int alive_ = 0;
  StepGraphs graphs_;
};

TEST_F(StepGraphsTest, AGraphIsFoundBySlotAndNumberOfRows) {
  EXPECT_EQ(FindOrAdd(0, 4), nullptr);
  EXPECT_EQ(FindOrAdd(1, 4), nullptr);
  EXPECT_EQ(FindOrAdd(0, 8), nullptr);

  DeviceGraph* const of_first = FindOrAdd(0, 4);
  DeviceGraph* const of_second = FindOrAdd(1, 4);

  ASSERT_NE(of_first, nullptr);
  ASSERT_NE(of_second, nullptr);
  EXPECT_NE(of_first, of_second);
  EXPECT_EQ(graphs_.count(), 3u);
}

TEST_F(StepGraphsTest, OneAddressThatDiffersMakesAnotherSlot) {
  (void)FindOrAdd(0, 4);
  StepGraphs::Addresses moved = Slot(0);
  moved.back() = &memory_[9];

  EXPECT_EQ(graphs_.Find(moved, 4), nullptr);
}

TEST_F(StepGraphsTest, ASlotWhoseMemoryIsGoneLosesItsGraphsToTheNextOne) {
  for (const std::size_t slot : {0, 1, 2, 0, 3}) (void)FindOrAdd(slot, 4);

  EXPECT_EQ(alive_, 3);
  EXPECT_NE(FindOrAdd(0, 4), nullptr);
  EXPECT_EQ(FindOrAdd(1, 4), nullptr);  // the one that was used least recently
}

}  // namespace
}  // namespace bascule
