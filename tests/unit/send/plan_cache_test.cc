#include "bridge/send/plan_cache.h"

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

}  // namespace
}  // namespace bascule
