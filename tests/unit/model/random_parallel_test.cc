// The planner's proof over random configurations, parallel layouts and senders.
#include <gtest/gtest.h>

#include "bridge/plan/planner.h"
#include "model/engine_layout.h"
#include "tests/unit/model/random_models.h"

namespace bascule {
namespace {

// `ranks` senders with a flat range of every tensor each, as FSDP cuts them.
Layout FlatSender(const std::vector<TensorSpec>& tensors, std::int64_t ranks) {
  Layout layout{.tensors = tensors, .ranks = std::vector<RankLayout>(static_cast<std::size_t>(ranks))};
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::int64_t elements = tensors[t].Elements();
    for (std::int64_t r = 0; r < ranks; ++r) {
      RankLayout& rank = layout.ranks[static_cast<std::size_t>(r)];
      for (const Box& box : BoxesOfRange(tensors[t].shape, elements * r / ranks, elements * (r + 1) / ranks)) {
        rank.rows.push_back({static_cast<std::int32_t>(rank.tensors.size()), Box::Whole(box.extent),
                             static_cast<std::int32_t>(t), box});
        rank.tensors.push_back(
            {.name = tensors[t].name + box.ToString(), .dtype = tensors[t].dtype, .shape = box.extent, .stride = {}});
      }
    }
  }
  return layout;
}

// Bytes of the slices that count: every logical element once, whoever else holds it.
std::int64_t CountedBytes(const Plan& plan) {
  std::int64_t bytes = 0;
  for (const Bucket& bucket : plan.buckets) {
    for (const Slice& slice : bucket.slices) bytes += slice.counts ? slice.payload_bytes : 0;
  }
  return bytes;
}

TEST(RandomParallelTest, WhateverDividesIsCoveredOnceAndWithoutAnySliceItIsNot) {
  int planned = 0;
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomModels models(seed);
    const ModelConfig config = models.Config();
    const ParallelLayout parallel = models.Parallel();
    const Result<EngineLayout> engine = MakeEngineLayout(config, DType::kBf16, parallel);
    if (!engine.ok()) {
      const std::string reason = engine.status().reason();
      EXPECT_TRUE(reason == "does_not_divide" || reason == "bad_parallel_layout") << engine.status().ToString();
      ++refused;
      continue;
    }
    const Layout sender = FlatSender(engine->layout.tensors, 1 + models.Below(3));

    Result<Plan> plan = MakePlan(sender, engine->layout, {.bucket_bytes = 4096, .ignore = {}});

    ASSERT_TRUE(plan.ok()) << config.Description() << " " << parallel.ToString() << ": " << plan.status().ToString();
    std::int64_t bytes = 0;
    for (const TensorSpec& tensor : engine->layout.tensors) bytes += tensor.Bytes();
    EXPECT_EQ(CountedBytes(*plan), bytes);
    std::vector<Slice>& slices =
        plan->buckets[static_cast<std::size_t>(models.Below(std::ssize(plan->buckets)))].slices;
    slices.erase(slices.begin() + models.Below(std::ssize(slices)));
    EXPECT_EQ(ProveCoverage(*plan, engine->layout).reason(), "not_covered");
    ++planned;
  }
  EXPECT_GT(planned, 40);
  EXPECT_GT(refused, 40);
}

}  // namespace
}  // namespace bascule
