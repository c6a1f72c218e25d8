#include "bridge/send/plan_cache.h"

#include "bridge/plan/projection.h"

#include <gtest/gtest.h>

#include "tests/support/scripted_engine/sharded_trainer.h"

namespace bascule {
namespace {

class PlanCacheTest : public testing::Test {
 protected:
  const Plan* PlanFor(int engine_ranks, std::int64_t bucket_bytes = 4096) {
    auto plan =
        plans_.PlanFor(source_.layout(), ShardedTrainer::EngineLayout(engine_ranks), {.bucket_bytes = bucket_bytes});
    return plan.ok() ? plan->get() : nullptr;
  }

  ShardedTrainer trainer_{/*trainer_ranks=*/2};
  const TensorSource source_ = trainer_.Source();
  PlanCache plans_;
};

// C-023.
TEST_F(PlanCacheTest, EqualLayoutsAndOptionsShareAPlan) {
  const Plan* first = PlanFor(1);
  ASSERT_NE(first, nullptr);

  EXPECT_NE(PlanFor(2), first);
  EXPECT_NE(PlanFor(1, 8192), first);
  EXPECT_EQ(PlanFor(1), first);
}

TEST_F(PlanCacheTest, ARefusedPlanIsRefusedAgain) {
  const Layout other = PlainLayout({{.name = "nobody.has.it", .dtype = DType::kF32, .shape = {2}}});

  EXPECT_EQ(plans_.PlanFor(source_.layout(), other, {}).status().reason(), "tensor_missing");
  EXPECT_EQ(plans_.PlanFor(source_.layout(), other, {}).status().reason(), "tensor_missing");
}

TEST_F(PlanCacheTest, OfOneRankOnlyWhatThatRankNeedsIsKept) {
  const std::vector<TensorSpec> tensors = {{"a", DType::kF32, {64, 8}}, {"b", DType::kF32, {32, 8}}};
  Layout sender{.tensors = tensors, .ranks = std::vector<RankLayout>(2)};
  for (std::int32_t t = 0; t < 2; ++t) {
    const Dims& shape = tensors[static_cast<std::size_t>(t)].shape;
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      RankLayout& layout = sender.ranks[static_cast<std::size_t>(rank)];
      const Dims half = {shape[0] / 2, shape[1]};
      layout.tensors.push_back({tensors[static_cast<std::size_t>(t)].name, DType::kF32, half, {}});
      layout.rows.push_back({t, Box::Whole(half), t, {{rank * half[0], 0}, half}});
    }
  }
  PlanCache of_rank_one(1);
  const auto whole = *plans_.PlanFor(sender, PlainLayout(tensors), {});

  const auto own = *of_rank_one.PlanFor(sender, PlainLayout(tensors), {});

  EXPECT_EQ(own->digest, whole->digest);
  EXPECT_EQ(own->routes, whole->routes);
  ASSERT_EQ(own->buckets.size(), whole->buckets.size());
  for (std::size_t b = 0; b < own->buckets.size(); ++b) {
    const bool is_own = own->routes[static_cast<std::size_t>(own->buckets[b].route)].sender_rank == 1;
    EXPECT_EQ(own->buckets[b].slices, is_own ? whole->buckets[b].slices : std::vector<Slice>());
    EXPECT_EQ(own->buckets[b].payload_bytes, whole->buckets[b].payload_bytes);
  }
  EXPECT_EQ(SliceMemory(*own) * 2, SliceMemory(*whole));
  EXPECT_EQ(*of_rank_one.PlanFor(sender, PlainLayout(tensors), {}), own);
}

}  // namespace
}  // namespace bascule
