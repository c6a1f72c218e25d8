#include "trainer_side/tensor_source.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace bascule {
namespace {

const TensorSpec kWeight{.name = "w", .dtype = DType::kF32, .shape = {4, 6}};

class TensorSourceTest : public testing::Test {
 protected:
  ShardView Rows(std::int64_t begin, std::int64_t end) const {
    return {.tensor = kWeight, .box = {{begin, 0}, {end - begin, 6}}, .data = memory_.data() + begin * 6, .stride = {}};
  }

  std::array<float, 24> memory_{};
  TensorSource source_{/*trainer_ranks=*/2};
};

TEST_F(TensorSourceTest, ShardsOfTwoRanksAreOneLogicalTensorWithARowEach) {
  ASSERT_TRUE(source_.Add(0, Rows(0, 3)).ok());
  ASSERT_TRUE(source_.Add(1, Rows(3, 4)).ok());

  EXPECT_EQ(source_.layout().tensors, std::vector<TensorSpec>{kWeight});
  EXPECT_EQ(source_.layout().ranks[1].rows[0].logical_box, (Box{{3, 0}, {1, 6}}));
  EXPECT_EQ(source_.layout().ranks[1].tensors[0].shape, (Dims{1, 6}));
  EXPECT_EQ(source_.Base(0, 0), reinterpret_cast<const std::byte*>(memory_.data()));
  EXPECT_EQ(source_.Base(1, 0), reinterpret_cast<const std::byte*>(memory_.data() + 18));
  EXPECT_TRUE(CheckLayout(source_.layout()).ok());
}

TEST_F(TensorSourceTest, TwoShardsOfOneTensorOnOneRankMakeAValidLayout) {
  ASSERT_TRUE(source_.Add(0, Rows(0, 1)).ok());
  ASSERT_TRUE(source_.Add(0, Rows(2, 4)).ok());

  EXPECT_TRUE(CheckLayout(source_.layout()).ok());
  EXPECT_EQ(source_.layout().ranks[0].tensors.size(), 2U);
}

TEST_F(TensorSourceTest, AStrideIsKeptInTheLayout) {
  ASSERT_TRUE(source_
                  .Add(0, {.tensor = {"t", DType::kF32, {2, 3}},
                           .box = Box::Whole({2, 3}),
                           .data = memory_.data(),
                           .stride = {1, 2}})
                  .ok());

  EXPECT_EQ(source_.layout().ranks[0].tensors[0].stride, (Dims{1, 2}));
}

TEST_F(TensorSourceTest, AShardWithoutElementsMayHaveNoData) {
  EXPECT_TRUE(source_.Add(0, {.tensor = kWeight, .box = {{4, 0}, {0, 6}}, .data = nullptr, .stride = {}}).ok());
}

TEST_F(TensorSourceTest, BadShardsAreRefusedAndLeaveTheLayout) {
  ASSERT_TRUE(source_.Add(0, Rows(0, 3)).ok());
  const Layout before = source_.layout();
  const float* data = memory_.data();
  const std::vector<std::pair<int, ShardView>> bad = {
      {-1, Rows(3, 4)},
      {2, Rows(3, 4)},
      {1, {.tensor = kWeight, .box = {{3, 0}, {2, 6}}, .data = data, .stride = {}}},
      {1, {.tensor = kWeight, .box = {{-1, 0}, {1, 6}}, .data = data, .stride = {}}},
      {1, {.tensor = kWeight, .box = {{0, 0}, {-1, 6}}, .data = data, .stride = {}}},
      {1, {.tensor = kWeight, .box = {{3}, {1}}, .data = data, .stride = {}}},
      {1, {.tensor = kWeight, .box = {{3, 0}, {1, 6}}, .data = nullptr, .stride = {}}},
      {1, {.tensor = kWeight, .box = {{3, 0}, {1, 6}}, .data = data, .stride = {1}}},
      {1, {.tensor = {"w", DType::kBf16, {4, 6}}, .box = {{3, 0}, {1, 6}}, .data = data, .stride = {}}},
      {1, {.tensor = {"w", DType::kF32, {6, 4}}, .box = {{3, 0}, {1, 4}}, .data = data, .stride = {}}},
      {1, {.tensor = {"", DType::kF32, {4}}, .box = Box::Whole({4}), .data = data, .stride = {}}},
      {1,
       {.tensor = {"big", DType::kF32, {std::numeric_limits<std::int64_t>::max()}},
        .box = {{0}, {1}},
        .data = data,
        .stride = {}}},
  };

  for (const auto& [rank, shard] : bad) {
    const Status status = source_.Add(rank, shard);

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << shard.box.ToString();
    EXPECT_EQ(status.reason(), "bad_shard") << shard.box.ToString();
    EXPECT_EQ(source_.layout(), before);
  }
}

// Local tensors of a layout: two logical tensors fused in one, with a row of padding.
class LocalTensorSourceTest : public testing::Test {
 protected:
  const std::vector<TensorSpec> tensors_ = {{"a", DType::kF32, {2, 3}}, {"b", DType::kF32, {1, 3}}};
  const LocalTensor fused_{.name = "fused", .dtype = DType::kF32, .shape = {4, 3}, .stride = {1, 4}};
  const std::vector<MapRow> rows_ = {
      {.local = 9, .local_box = {{0, 0}, {2, 3}}, .logical = 0, .logical_box = {{0, 0}, {2, 3}}},
      {.local = 9, .local_box = {{2, 0}, {1, 3}}, .logical = 1, .logical_box = {{0, 0}, {1, 3}}}};
  std::array<float, 12> memory_{};
  TensorSource source_{/*trainer_ranks=*/2, tensors_};
};

TEST_F(LocalTensorSourceTest, ALocalTensorOfALayoutKeepsItsNameStrideAndRows) {
  ASSERT_TRUE(source_.AddLocal(1, {.name = "empty", .dtype = DType::kF32, .shape = {0, 3}}, {}, nullptr).ok());
  ASSERT_TRUE(source_.AddLocal(1, fused_, rows_, memory_.data()).ok());

  EXPECT_EQ(source_.layout().tensors, tensors_);
  EXPECT_EQ(source_.layout().ranks[1].tensors[1], fused_);
  EXPECT_EQ(source_.layout().ranks[1].rows[0].local, 1);
  EXPECT_EQ(source_.layout().ranks[1].rows[1].logical_box, rows_[1].logical_box);
  EXPECT_EQ(source_.Base(1, 1), reinterpret_cast<const std::byte*>(memory_.data()));
  EXPECT_TRUE(CheckLayout(source_.layout()).ok());
}

TEST_F(LocalTensorSourceTest, ARankOfALayoutIsBackedByAnAddressForEachOfItsTensors) {
  const Layout layout = PlainLayout(tensors_);
  const std::array<const void*, 2> addresses = {memory_.data(), memory_.data() + 6};

  ASSERT_TRUE(source_.AddRank(0, layout.ranks[0], addresses).ok());

  EXPECT_EQ(source_.layout().ranks[0], layout.ranks[0]);
  EXPECT_EQ(source_.Base(0, 1), reinterpret_cast<const std::byte*>(memory_.data() + 6));
  EXPECT_EQ(source_.AddRank(1, layout.ranks[0], std::span(addresses).first(1)).reason(), "bad_shard");
}

TEST_F(LocalTensorSourceTest, BadLocalTensorsAreRefusedAndLeaveTheLayout) {
  const Layout before = source_.layout();
  std::vector<MapRow> outside = rows_;
  outside[1].local_box.offset[0] = 4;
  std::vector<MapRow> unknown = rows_;
  unknown[0].logical = 2;

  EXPECT_EQ(source_.AddLocal(2, fused_, rows_, memory_.data()).reason(), "bad_shard");
  EXPECT_EQ(source_.AddLocal(0, fused_, rows_, nullptr).reason(), "bad_shard");
  EXPECT_EQ(source_.AddLocal(0, fused_, outside, memory_.data()).reason(), "bad_layout");
  EXPECT_EQ(source_.AddLocal(0, fused_, unknown, memory_.data()).reason(), "bad_layout");
  EXPECT_EQ(source_.layout(), before);
}

}  // namespace
}  // namespace bascule
