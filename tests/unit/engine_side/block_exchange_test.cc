#include "engine_side/block_exchange.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/engine_side/faulty_copier.h"

namespace bascule {
namespace {

using Memory = std::vector<std::vector<std::byte>>;

constexpr int kLanes = 2;
constexpr int kCopiesOfBlock = 3;

class BlockExchangeTest : public ::testing::Test {
 protected:
  // Sizes that end inside a block, at one and before one; and no bytes at all.
  BlockExchangeTest() {
    std::mt19937 random(7);
    for (const std::size_t size : {BlockExchange::kBlockBytes * 3, std::size_t{0}, BlockExchange::kBlockBytes + 17,
                                   std::size_t{5}, BlockExchange::kBlockBytes * 2 - 1}) {
      for (Memory* memory : {&a_, &b_}) {
        memory->emplace_back(size);
        for (std::byte& byte : memory->back()) byte = static_cast<std::byte>(random());
      }
    }
    for (std::size_t i = 0; i < a_.size(); ++i) pairs_.push_back({a_[i], b_[i]});
  }

  static constexpr int kBlocks = 3 + 2 + 1 + 2;

  Memory a_, b_;
  std::vector<BlockExchange::Pair> pairs_;
  FaultyCopier copier_;
};

TEST_F(BlockExchangeTest, EveryByteChangesPlacesAndBackAgain) {
  const Memory a = a_, b = b_;
  BlockExchange exchange(pairs_, copier_, kLanes);

  ASSERT_TRUE(exchange.Run().ok());
  EXPECT_TRUE(a_ == b && b_ == a);
  EXPECT_EQ(copier_.copies(), kBlocks * kCopiesOfBlock);

  ASSERT_TRUE(exchange.Run().ok());
  EXPECT_TRUE(a_ == a && b_ == b);
}

TEST_F(BlockExchangeTest, AnExchangeThatIsOverCanBeUndone) {
  const Memory a = a_, b = b_;
  BlockExchange exchange(pairs_, copier_, kLanes);
  ASSERT_TRUE(exchange.Run().ok());

  ASSERT_TRUE(exchange.Undo().ok());

  EXPECT_TRUE(a_ == a && b_ == b);
}

TEST_F(BlockExchangeTest, WhicheverCopyFailsUndoBringsEveryByteBack) {
  const Memory a = a_, b = b_;
  for (int copy = 0; copy < kBlocks * kCopiesOfBlock; ++copy) {
    BlockExchange exchange(pairs_, copier_, kLanes);
    copier_.FailAt(copy, FaultyCopier::Fault::kFails);
    EXPECT_EQ(exchange.Run().reason(), "copy_failed");

    ASSERT_TRUE(exchange.Undo().ok());

    ASSERT_TRUE(a_ == a && b_ == b) << "copy " << copy;
  }
}

TEST_F(BlockExchangeTest, ACopierThatFailsForGoodFailsTheUndoToo) {
  BlockExchange exchange(pairs_, copier_, kLanes);
  copier_.FailAt(4, FaultyCopier::Fault::kFailsForGood);
  EXPECT_FALSE(exchange.Run().ok());

  EXPECT_EQ(exchange.Undo().reason(), "copy_failed");
}

}  // namespace
}  // namespace bascule
