// The proof refuses every plan that differs from a good one in one slice.
#include <gtest/gtest.h>

#include <functional>

#include "bridge/plan/planner.h"
#include "tests/unit/plan/random_layouts.h"

namespace bascule {
namespace {

struct SliceRef {
  std::size_t bucket = 0;
  std::size_t slice = 0;
};

SliceRef RandomSlice(std::mt19937_64& random, const Plan& plan) {
  SliceRef ref;
  ref.bucket = random() % plan.buckets.size();
  ref.slice = random() % plan.buckets[ref.bucket].slices.size();
  return ref;
}

// Damages one slice of a plan. False when this slice cannot be damaged so.
using Mutation = std::function<bool(std::mt19937_64&, Plan&, const SliceRef&)>;

int RandomDim(std::mt19937_64& random, const Box& box) {
  return static_cast<int>(random() % static_cast<unsigned>(box.dims()));
}
std::int64_t PlusOrMinusOne(std::mt19937_64& random) { return random() % 2 == 0 ? 1 : -1; }

Slice& SliceOf(Plan& plan, const SliceRef& ref) { return plan.buckets[ref.bucket].slices[ref.slice]; }

bool Drop(std::mt19937_64&, Plan& plan, const SliceRef& ref) {
  auto& slices = plan.buckets[ref.bucket].slices;
  slices.erase(slices.begin() + static_cast<std::ptrdiff_t>(ref.slice));
  return true;
}

bool Duplicate(std::mt19937_64& random, Plan& plan, const SliceRef& ref) {
  const Slice copy = SliceOf(plan, ref);
  const std::int32_t route = plan.buckets[ref.bucket].route;
  Bucket& other = plan.buckets[random() % plan.buckets.size()];
  (other.route == route ? other : plan.buckets[ref.bucket]).slices.push_back(copy);
  return true;
}

bool ShiftEngineBox(std::mt19937_64& random, Plan& plan, const SliceRef& ref) {
  Box& box = SliceOf(plan, ref).engine_box;
  if (box.dims() == 0) return false;
  box.offset[RandomDim(random, box)] += PlusOrMinusOne(random);
  return true;
}

bool ShiftLogicalBox(std::mt19937_64& random, Plan& plan, const SliceRef& ref) {
  Box& box = SliceOf(plan, ref).logical_box;
  if (box.dims() == 0) return false;
  box.offset[RandomDim(random, box)] += PlusOrMinusOne(random);
  return true;
}

bool ShiftBoth(std::mt19937_64& random, Plan& plan, const SliceRef& ref) {
  Slice& slice = SliceOf(plan, ref);
  if (slice.engine_box.dims() == 0 || slice.logical_box.dims() == 0) return false;
  const std::int64_t step = PlusOrMinusOne(random);
  slice.engine_box.offset[0] += step;
  slice.logical_box.offset[0] += step;
  return true;
}

bool ResizeEngineBox(std::mt19937_64& random, Plan& plan, const SliceRef& ref) {
  Box& box = SliceOf(plan, ref).engine_box;
  if (box.dims() == 0) return false;
  box.extent[RandomDim(random, box)] += PlusOrMinusOne(random);
  return true;
}

bool ShrinkBoth(std::mt19937_64&, Plan& plan, const SliceRef& ref) {
  Slice& slice = SliceOf(plan, ref);
  if (slice.engine_box.dims() == 0 || slice.engine_box.extent != slice.logical_box.extent) return false;
  slice.engine_box.extent[0] -= 1;
  slice.logical_box.extent[0] -= 1;
  return true;
}

bool FlipCounts(std::mt19937_64&, Plan& plan, const SliceRef& ref) {
  SliceOf(plan, ref).counts = !SliceOf(plan, ref).counts;
  return true;
}

bool AnotherEngineTensor(std::mt19937_64& random, Plan& plan, const SliceRef& ref) {
  SliceOf(plan, ref).engine_tensor += static_cast<std::int32_t>(PlusOrMinusOne(random));
  return true;
}

bool AnotherLogicalTensor(std::mt19937_64& random, Plan& plan, const SliceRef& ref) {
  SliceOf(plan, ref).tensor += static_cast<std::int32_t>(PlusOrMinusOne(random));
  return true;
}

bool AnotherRoute(std::mt19937_64&, Plan& plan, const SliceRef& ref) {
  plan.buckets[ref.bucket].route = static_cast<std::int32_t>(plan.routes.size());
  return true;
}

bool WildNumbers(std::mt19937_64& random, Plan& plan, const SliceRef& ref) {
  Slice& slice = SliceOf(plan, ref);
  if (slice.engine_box.dims() == 0) return false;
  const std::int64_t wild[] = {INT64_MAX, INT64_MIN, -1, INT64_MAX / 2};
  slice.engine_box.offset[0] = wild[random() % 4];
  if (random() % 2 == 0) slice.engine_box.extent[0] = wild[random() % 4];
  return true;
}

struct NamedMutation {
  const char* name;
  Mutation mutate;
};

TEST(CoverageTest, APlanWithOneDamagedSliceIsRefused) {
  const NamedMutation mutations[] = {
      {"drop", Drop},
      {"duplicate", Duplicate},
      {"shift engine box", ShiftEngineBox},
      {"shift logical box", ShiftLogicalBox},
      {"shift both", ShiftBoth},
      {"resize engine box", ResizeEngineBox},
      {"shrink both", ShrinkBoth},
      {"flip counts", FlipCounts},
      {"another engine tensor", AnotherEngineTensor},
      {"another logical tensor", AnotherLogicalTensor},
      {"another route", AnotherRoute},
      {"wild numbers", WildNumbers},
  };
  for (const NamedMutation& mutation : mutations) {
    int tried = 0;
    for (std::uint64_t seed = 1; seed <= 150; ++seed) {
      SCOPED_TRACE(testing::Message() << mutation.name << " seed=" << seed);
      std::mt19937_64 random(seed);
      const RandomPair pair = MakeRandomPair(random);
      Result<Plan> plan = MakePlan(pair.sender, pair.engine, {.bucket_bytes = 4096, .ignore = {}});
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      ASSERT_TRUE(ProveCoverage(*plan, pair.engine).ok());
      if (plan->buckets.empty() || !mutation.mutate(random, *plan, RandomSlice(random, *plan))) continue;
      ++tried;

      const Status status = ProveCoverage(*plan, pair.engine);

      ASSERT_FALSE(status.ok());
      ASSERT_TRUE(status.reason() == "not_covered" || status.reason() == "covered_twice") << status.ToString();
    }
    EXPECT_GT(tried, 50) << mutation.name;
  }
}

TEST(CoverageTest, ABreachNamesRankTensorAndBox) {
  const Layout layout = PlainLayout({{"w", DType::kF32, {4, 6}}});
  Plan plan = *MakePlan(layout, layout, {});
  Plan twice = plan;
  plan.buckets[0].slices[0].logical_box.extent[1] = plan.buckets[0].slices[0].engine_box.extent[1] = 5;
  twice.buckets[0].slices.push_back(twice.buckets[0].slices[0]);

  EXPECT_EQ(ProveCoverage(plan, layout),
            Status::FailedPrecondition("not_covered", "engine rank=0 tensor=w box=[0:4, 5:6] is written by nothing"));
  EXPECT_EQ(
      ProveCoverage(twice, layout),
      Status::FailedPrecondition("covered_twice", "engine rank=0 tensor=w box=[0:4, 0:6] is written more than once"));
}

TEST(CoverageTest, APlanForOtherTensorsIsRefused) {
  const Layout layout = PlainLayout({{"w", DType::kF32, {4, 6}}});
  const Plan plan = *MakePlan(layout, layout, {});

  EXPECT_EQ(ProveCoverage(plan, PlainLayout({{"w", DType::kBf16, {4, 6}}})).reason(), "not_covered");
}

// C-067: eight experts in twelve places, one of them twice on a rank.
TEST(CoverageTest, ARedundantExpertSlotGetsItsExpertTooAndCountsOnce) {
  std::vector<TensorSpec> experts;
  for (const char name : std::string_view("abcdefgh")) experts.push_back({std::string(1, name), DType::kBf16, {2, 3}});
  Layout engine{.tensors = experts, .ranks = {}};
  for (const std::vector<std::int32_t>& slots : {std::vector<std::int32_t>{0, 1, 2, 3, 0, 7}, {4, 5, 6, 7, 1, 0}}) {
    RankLayout& rank = engine.ranks.emplace_back();
    rank.tensors.push_back({"experts", DType::kBf16, {6, 2, 3}, {}});
    for (const std::int32_t expert : slots) {
      rank.rows.push_back({0, {{std::ssize(rank.rows), 0, 0}, {1, 2, 3}}, expert, Box::Whole({2, 3})});
    }
  }

  const Result<Plan> plan = MakePlan(PlainLayout(experts), engine, {});

  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  std::vector<int> counted(experts.size());
  std::vector<std::vector<int>> written(2, std::vector<int>(6));
  for (const Bucket& bucket : plan->buckets) {
    const auto rank = static_cast<std::size_t>(plan->routes[static_cast<std::size_t>(bucket.route)].engine_rank);
    for (const Slice& slice : bucket.slices) {
      counted[static_cast<std::size_t>(slice.tensor)] += slice.counts ? 1 : 0;
      ++written[rank][static_cast<std::size_t>(slice.engine_box.offset[0])];
    }
  }
  EXPECT_EQ(counted, std::vector<int>(8, 1));
  EXPECT_EQ(written, std::vector<std::vector<int>>(2, std::vector<int>(6, 1)));
}

}  // namespace
}  // namespace bascule
