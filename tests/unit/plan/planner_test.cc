#include "bridge/plan/planner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace bascule {
namespace {

// Rows [begin, end) of a tensor in a local tensor of their own.
void HoldRows(Layout& layout, std::size_t rank, std::int32_t tensor, std::int64_t begin, std::int64_t end) {
  const TensorSpec& spec = layout.tensors[static_cast<std::size_t>(tensor)];
  Box box = Box::Whole(spec.shape);
  box.offset[0] = begin;
  box.extent[0] = end - begin;
  RankLayout& held = layout.ranks[rank];
  const auto local = static_cast<std::int32_t>(held.tensors.size());
  held.tensors.push_back({fmt::format("{}.{}", spec.name, local), spec.dtype, box.extent, {}});
  held.rows.push_back({local, Box::Whole(box.extent), tensor, box});
}

Layout LayoutOf(std::vector<TensorSpec> tensors, std::size_t ranks) {
  return {.tensors = std::move(tensors), .ranks = std::vector<RankLayout>(ranks)};
}

std::vector<std::pair<Route, Slice>> SlicesOf(const Plan& plan) {
  std::vector<std::pair<Route, Slice>> slices;
  for (const Bucket& bucket : plan.buckets) {
    for (const Slice& slice : bucket.slices)
      slices.emplace_back(plan.routes[static_cast<std::size_t>(bucket.route)], slice);
  }
  return slices;
}

TEST(PlannerTest, OnePlainTrainerAndOnePlainEngineMoveEveryTensorWhole) {
  const Layout layout = PlainLayout({{"a", DType::kBf16, {4, 6}}, {"b", DType::kF32, {}}});

  const Result<Plan> plan = MakePlan(layout, layout, {});

  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  ASSERT_EQ(plan->buckets.size(), 1U);
  ASSERT_EQ(plan->buckets[0].slices.size(), 2U);
  EXPECT_EQ(plan->buckets[0].slices[1].payload_offset, 64);
  EXPECT_EQ(plan->payload_bytes, 48 + 4);
  EXPECT_EQ(plan->sender_layout, LayoutDigest(layout));
}

TEST(PlannerTest, WhereBothSidesAreLaidOutAlikeEveryRankTakesEverythingFromItsTwin) {
  Layout layout = LayoutOf({{"norm", DType::kBf16, {4}}, {"w", DType::kBf16, {6, 4}}}, 3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    HoldRows(layout, rank, 0, 0, 4);
    HoldRows(layout, rank, 1, 2 * static_cast<std::int64_t>(rank), 2 * static_cast<std::int64_t>(rank) + 2);
  }
  Layout of_other_type = layout;
  for (TensorSpec& tensor : of_other_type.tensors) tensor.dtype = DType::kF32;
  for (RankLayout& rank : of_other_type.ranks) {
    for (LocalTensor& tensor : rank.tensors) tensor.dtype = DType::kF32;
  }

  const Result<Plan> plan = MakePlan(layout, layout, {});

  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->routes, (std::vector<Route>{{0, 0}, {1, 1}, {2, 2}}));
  EXPECT_EQ(plan->payload_bytes, 3 * 8 + 48);
  EXPECT_TRUE(MakePlan(layout, of_other_type, {}).ok());
}

// C-074.
TEST(PlannerTest, MastersAreConvertedAndOtherTypesAreRefusedWithBothSpelledOut) {
  const auto plan_between = [](DType sender, DType engine) {
    return MakePlan(PlainLayout({{"w", sender, {4}}}), PlainLayout({{"w", engine, {4}}}), {});
  };

  EXPECT_EQ(plan_between(DType::kF32, DType::kBf16)->buckets[0].slices[0].conversion, Conversion::kF32ToBf16);
  EXPECT_EQ(plan_between(DType::kF32, DType::kBf16)->payload_bytes, 8);
  EXPECT_EQ(plan_between(DType::kBf16, DType::kF32)->buckets[0].slices[0].conversion, Conversion::kBf16ToF32);
  EXPECT_EQ(plan_between(DType::kF16, DType::kF16)->buckets[0].slices[0].conversion, Conversion::kNone);

  const Status status = plan_between(DType::kF16, DType::kBf16).status();

  EXPECT_EQ(status.reason(), "dtype_mismatch");
  EXPECT_NE(status.message().find("w: sender F16 engine BF16"), std::string::npos) << status.message();
}

// C-050.
TEST(PlannerTest, AnotherModelSizeIsRefusedWithTheFirstNamesAndBothShapes) {
  std::vector<TensorSpec> held;
  std::vector<TensorSpec> wanted;
  for (int i = 0; i < 30; ++i) {
    held.push_back({fmt::format("layer{:02}", i), DType::kBf16, {128, 128}});
    wanted.push_back({fmt::format("layer{:02}", i), DType::kBf16, {64, 64}});
  }

  const Status status = MakePlan(PlainLayout(held), PlainLayout(wanted), {}).status();

  EXPECT_EQ(status.reason(), "shape_mismatch");
  EXPECT_NE(status.message().find("30 tensors: layer00: sender [128, 128] engine [64, 64]"), std::string::npos);
  EXPECT_NE(status.message().find("and 10 more"), std::string::npos) << status.message();
}

// C-061: every engine rank with the rows of rank 0.
TEST(PlannerTest, RanksThatAllTakeShardZeroAreRefusedBecauseTheRestIsNotConsumed) {
  const Layout sender = PlainLayout({{"w", DType::kBf16, {8, 4}}});
  Layout engine = LayoutOf(sender.tensors, 2);
  HoldRows(engine, 0, 0, 0, 4);
  HoldRows(engine, 1, 0, 0, 4);

  const Status status = MakePlan(sender, engine, {}).status();

  EXPECT_EQ(status, Status::FailedPrecondition(
                        "not_covered", "logical tensor=w over all engine ranks box=[4:8, 0:4] is counted by nothing"));
}

// C-068: 130 rows, padded to 256 by the trainer with garbage and to 192 by the engine with zeros, cut over the ranks.
TEST(PlannerTest, VocabularyPaddingOfEitherSideNeverTravels) {
  for (const std::size_t ranks : {1U, 2U, 4U}) {
    const std::vector<TensorSpec> tensors = {{"embedding", DType::kBf16, {130, 8}}};
    Layout sender = LayoutOf(tensors, 1);
    sender.ranks[0].tensors = {{"word_embeddings", DType::kBf16, {256, 8}, {}}};
    sender.ranks[0].rows = {{0, {{0, 0}, {130, 8}}, 0, {{0, 0}, {130, 8}}}};
    Layout engine = LayoutOf(tensors, ranks);
    const std::int64_t per_rank = 192 / static_cast<std::int64_t>(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::int64_t first = static_cast<std::int64_t>(r) * per_rank;
      const std::int64_t real = std::clamp<std::int64_t>(130 - first, 0, per_rank);
      engine.ranks[r].tensors = {{"embedding", DType::kBf16, {per_rank, 8}, {}}};
      engine.ranks[r].rows = {{0, {{0, 0}, {real, 8}}, 0, {{first, 0}, {real, 8}}},
                              {0, {{real, 0}, {per_rank - real, 8}}, kFill, {}}};
    }

    const Result<Plan> plan = MakePlan(sender, engine, {});

    ASSERT_TRUE(plan.ok()) << ranks << ": " << plan.status().ToString();
    EXPECT_EQ(plan->payload_bytes, 130 * 8 * 2);
    for (const auto& [route, slice] : SlicesOf(*plan)) {
      EXPECT_LE(slice.sender_box.offset[0] + slice.sender_box.extent[0], 130);
      EXPECT_EQ(slice.logical_box.offset[0], route.engine_rank * per_rank + slice.engine_box.offset[0]);
    }
  }
}

// C-070.
TEST(PlannerTest, AnEmptyShardTakesNoPartWhereverItSaysItIs) {
  for (const std::int64_t offset : {0, 2, 5, 6}) {
    Layout sender = LayoutOf({{"w", DType::kF32, {5, 3}}}, 4);
    sender.ranks[0].tensors = {{"empty", DType::kF32, {0, 3}, {}}};
    sender.ranks[0].rows = {{0, {{0, 0}, {0, 3}}, 0, {{offset, 0}, {0, 3}}}};
    HoldRows(sender, 1, 0, 0, 2);
    HoldRows(sender, 2, 0, 2, 4);
    HoldRows(sender, 3, 0, 4, 5);

    const Result<Plan> plan = MakePlan(sender, PlainLayout(sender.tensors), {});

    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    EXPECT_EQ(plan->routes, (std::vector<Route>{{1, 0}, {2, 0}, {3, 0}}));
    EXPECT_EQ(plan->payload_bytes, 5 * 3 * 4);
  }
}

// C-070.
TEST(PlannerTest, ATensorOfOnlyEmptyShardsIsCompleteOnlyWhenItHasNoElement) {
  Layout sender = LayoutOf({{"w", DType::kF32, {0, 3}}}, 2);
  HoldRows(sender, 0, 0, 0, 0);
  HoldRows(sender, 1, 0, 0, 0);
  const Result<Plan> plan = MakePlan(sender, PlainLayout(sender.tensors), {});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_TRUE(plan->buckets.empty());
  EXPECT_EQ(plan->names.loaded, std::vector<std::string>{"w"});

  sender.tensors[0].shape = {5, 3};

  EXPECT_EQ(MakePlan(sender, PlainLayout(sender.tensors), {}).status().reason(), "not_covered");
}

// C-073: every offset suits the largest element.
TEST(PlannerTest, MixedElementTypesAreAllAligned) {
  const Layout layout = PlainLayout({{"a", DType::kBf16, {3}},
                                     {"b", DType::kF32, {5}},
                                     {"c", DType::kF8E4M3, {1}},
                                     {"d", DType::kF64, {2}},
                                     {"e", DType::kU8, {7}},
                                     {"f", DType::kF32, {0}}});

  const Plan plan = *MakePlan(layout, layout, {});

  ASSERT_EQ(plan.buckets.size(), 1U);
  ASSERT_EQ(plan.buckets[0].slices.size(), 5U);
  for (const Slice& slice : plan.buckets[0].slices) EXPECT_EQ(slice.payload_offset % kSliceAlignment, 0);
  EXPECT_EQ(plan.payload_bytes, 6 + 20 + 1 + 16 + 7);
}

// C-077: one logical tensor, two uses. The trainer's own head is a name of its own.
TEST(PlannerTest, ATiedTensorIsSentForEachUseAndCountsOnce) {
  const Layout sender = PlainLayout({{"embedding", DType::kBf16, {6, 4}}, {"head", DType::kBf16, {6, 4}}});
  Layout engine = PlainLayout({{"embedding", DType::kBf16, {6, 4}}});
  engine.ranks[0].tensors.push_back({"lm_head", DType::kBf16, {6, 4}, {}});
  engine.ranks[0].rows.push_back({1, Box::Whole({6, 4}), 0, Box::Whole({6, 4})});

  EXPECT_EQ(MakePlan(sender, engine, {}).status().reason(), "tensor_unexpected");
  const Result<Plan> plan = MakePlan(sender, engine, {.bucket_bytes = 4096, .ignore = {"head"}});

  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const auto slices = SlicesOf(*plan);
  ASSERT_EQ(slices.size(), 2U);
  EXPECT_TRUE(slices[0].second.counts);
  EXPECT_FALSE(slices[1].second.counts);
  EXPECT_EQ(plan->names.ignored, std::vector<std::string>{"head"});
}

// C-097: sizes just below, at and above the limit, one and several to a bucket.
TEST(PlannerTest, NoBucketPassesTheLimit) {
  const std::vector<std::vector<std::int64_t>> size_lists = {
      {4095, 4095}, {1, 4096}, {2048, 2048, 1}, {4032, 64}, {4033, 64}, {4097}, {8192, 1}, {64, 64, 4096, 64}};
  for (const std::vector<std::int64_t>& sizes : size_lists) {
    std::vector<TensorSpec> tensors;
    for (const std::int64_t size : sizes) tensors.push_back({fmt::format("t{}", tensors.size()), DType::kU8, {size}});

    const Plan plan = *MakePlan(PlainLayout(tensors), PlainLayout(tensors), {.bucket_bytes = 4096, .ignore = {}});

    for (const Bucket& bucket : plan.buckets) EXPECT_LE(bucket.payload_bytes, 4096);
  }
}

TEST(PlannerTest, ALargeSliceIsCutInItsOutermostDimension) {
  const Layout layout = PlainLayout({{"w", DType::kBf16, {10, 512}}});

  const Plan plan = *MakePlan(layout, layout, {.bucket_bytes = 4096, .ignore = {}});

  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_EQ(plan.buckets[0].slices[0].logical_box.ToString(), "[0:4, 0:512]");
  EXPECT_EQ(plan.buckets[2].slices[0].logical_box.ToString(), "[8:10, 0:512]");
}

// Two sender rows of one local tensor, as of two query groups, that the engine has as one.
TEST(PlannerTest, SlicesThatTouchOnBothSidesAreOne) {
  const Layout engine = PlainLayout({{"w", DType::kU8, {8, 16}}});
  Layout sender = LayoutOf(engine.tensors, 1);
  HoldRows(sender, 0, 0, 0, 8);
  RankLayout& rank = sender.ranks[0];
  rank.rows = {{0, {{0, 0}, {4, 16}}, 0, {{0, 0}, {4, 16}}}, {0, {{4, 0}, {4, 16}}, 0, {{4, 0}, {4, 16}}}};

  const auto slices = SlicesOf(*MakePlan(sender, engine, {}));

  ASSERT_EQ(slices.size(), 1U);
  EXPECT_EQ(slices[0].second.logical_box, Box::Whole({8, 16}));
  EXPECT_EQ(slices[0].second.sender_box, Box::Whole({8, 16}));
  EXPECT_EQ(slices[0].second.payload_bytes, 128);
}

TEST(PlannerTest, SlicesThatTouchOnOneSideOnlyStayApart) {
  const Layout engine = PlainLayout({{"w", DType::kU8, {8, 16}}});
  Layout sender = LayoutOf(engine.tensors, 1);
  HoldRows(sender, 0, 0, 0, 8);
  RankLayout& rank = sender.ranks[0];
  rank.rows = {{0, {{0, 0}, {4, 16}}, 0, {{4, 0}, {4, 16}}}, {0, {{4, 0}, {4, 16}}, 0, {{0, 0}, {4, 16}}}};

  EXPECT_EQ(SlicesOf(*MakePlan(sender, engine, {})).size(), 2U);
}

TEST(PlannerTest, SlicesOfTwoEngineRowsStayApart) {
  Layout engine = PlainLayout({{"w", DType::kU8, {8, 16}}});
  const Layout sender = engine;
  engine.ranks[0].rows = {{0, {{0, 0}, {4, 16}}, 0, {{0, 0}, {4, 16}}}, {0, {{4, 0}, {4, 16}}, 0, {{4, 0}, {4, 16}}}};

  const Result<Plan> plan = MakePlan(sender, engine, {});

  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(SlicesOf(*plan).size(), 2U);
}

TEST(PlannerTest, BucketsAlternateBetweenRoutesInTheEnginesTensorOrder) {
  Layout sender = LayoutOf({{"z", DType::kU8, {64, 512}}, {"a", DType::kU8, {64, 512}}}, 2);
  for (const std::int32_t tensor : {0, 1}) {
    HoldRows(sender, 0, tensor, 0, 32);
    HoldRows(sender, 1, tensor, 32, 64);
  }
  const Layout engine = PlainLayout({{"a", DType::kU8, {64, 512}}, {"z", DType::kU8, {64, 512}}});

  const Plan plan = *MakePlan(sender, engine, {.bucket_bytes = 8192, .ignore = {}});

  std::string order;
  for (const Bucket& bucket : plan.buckets) {
    order += fmt::format("{}{} ", plan.tensors[static_cast<std::size_t>(bucket.slices[0].tensor)].name, bucket.route);
  }
  EXPECT_EQ(order, "a0 a1 a0 a1 z0 z1 z0 z1 ");
}

TEST(PlannerTest, ReplicatedNormsFillUpWhatUnevenShardsLeave) {
  std::vector<TensorSpec> tensors = {{"w", DType::kU8, {7, 1024}}};
  for (int i = 0; i < 12; ++i) tensors.push_back({fmt::format("norm{}", i), DType::kU8, {1024}});
  Layout sender = LayoutOf(tensors, 3);
  HoldRows(sender, 0, 0, 0, 4);
  HoldRows(sender, 1, 0, 4, 6);
  HoldRows(sender, 2, 0, 6, 7);
  for (std::int32_t norm = 1; norm <= 12; ++norm) {
    for (std::size_t r = 0; r < 3; ++r) HoldRows(sender, r, norm, 0, 1024);
  }

  const Plan plan = *MakePlan(sender, PlainLayout(tensors), {.bucket_bytes = 4096, .ignore = {}});

  std::map<std::int32_t, std::int64_t> load;
  for (const auto& [route, slice] : SlicesOf(plan)) load[route.sender_rank] += slice.payload_bytes;
  for (const auto& [rank, bytes] : load) EXPECT_NEAR(static_cast<double>(bytes), 19.0 * 1024 / 3, 1024) << rank;
}

// Ranks i and i + 1 hold 7 - i boxes, alone. Each box given to the lighter of its two ranks leaves 7, 6, .. 0 of them,
// and no box can change ranks to any effect. Ranks 0 to 3 alone hold 18: no choice leaves less than 4.5.
TEST(PlannerTest, AChainOfReplicasPassesOnWhatNoSingleMoveCouldEven) {
  constexpr std::size_t kRanks = 8;
  std::vector<TensorSpec> tensors;
  std::vector<std::size_t> first_holder;
  for (std::size_t i = kRanks - 1; i-- > 0;) {
    for (std::size_t box = 0; box < kRanks - 1 - i; ++box) {
      tensors.push_back({fmt::format("w{}.{}", i, box), DType::kU8, {4096}});
      first_holder.push_back(i);
    }
  }
  Layout sender = LayoutOf(tensors, kRanks);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    HoldRows(sender, first_holder[t], static_cast<std::int32_t>(t), 0, 4096);
    HoldRows(sender, first_holder[t] + 1, static_cast<std::int32_t>(t), 0, 4096);
  }

  const Plan plan = *MakePlan(sender, PlainLayout(tensors), {.bucket_bytes = 4096, .ignore = {}});

  std::map<std::int32_t, std::int64_t> boxes;
  for (const auto& [route, slice] : SlicesOf(plan)) ++boxes[route.sender_rank];
  for (const auto& [rank, count] : boxes) EXPECT_LE(count, 5) << rank;
}

TEST(PlannerTest, AReplicatedKvHeadGoesToEveryRankAndCountsOnce) {
  const std::vector<TensorSpec> tensors = {{"k", DType::kBf16, {32, 8}}};
  Layout engine = LayoutOf(tensors, 4);  // Two heads of 16 rows over four ranks.
  for (std::size_t r = 0; r < 4; ++r) HoldRows(engine, r, 0, r < 2 ? 0 : 16, r < 2 ? 16 : 32);

  const Plan plan = *MakePlan(PlainLayout(tensors), engine, {});

  std::map<std::int32_t, bool> counts_of_rank;
  for (const auto& [route, slice] : SlicesOf(plan)) counts_of_rank[route.engine_rank] = slice.counts;
  EXPECT_EQ(counts_of_rank, (std::map<std::int32_t, bool>{{0, true}, {1, false}, {2, true}, {3, false}}));
  EXPECT_EQ(plan.payload_bytes, 4 * 16 * 8 * 2);
}

TEST(PlannerTest, AHoleInTheSenderNamesTensorRankAndBox) {
  Layout sender = LayoutOf({{"w", DType::kF32, {8, 4}}}, 2);
  HoldRows(sender, 0, 0, 0, 3);
  HoldRows(sender, 1, 0, 5, 8);

  const Status status = MakePlan(sender, PlainLayout(sender.tensors), {}).status();

  EXPECT_EQ(status, Status::FailedPrecondition(
                        "not_covered", "no sender rank holds tensor=w box=[3:5, 0:4], which engine rank=0 needs"));
}

TEST(PlannerTest, AnEngineElementThatNoRowWritesOrTwoRowsWriteIsNamed) {
  const Layout sender = PlainLayout({{"w", DType::kF32, {8, 4}}});
  Layout hole = sender;
  hole.ranks[0].tensors[0].shape = {9, 4};
  Layout twice = sender;
  twice.ranks[0].rows.push_back({0, {{2, 0}, {1, 4}}, kFill, {}});

  const Status not_covered = MakePlan(sender, hole, {}).status();
  const Status covered_twice = MakePlan(sender, twice, {}).status();

  EXPECT_EQ(not_covered.reason(), "not_covered");
  EXPECT_NE(not_covered.message().find("engine rank=0 tensor=w box=[8:9, 0:4]"), std::string::npos)
      << not_covered.message();
  EXPECT_EQ(covered_twice.reason(), "covered_twice");
  EXPECT_NE(covered_twice.message().find("box=[2:3, 0:4]"), std::string::npos) << covered_twice.message();
}

TEST(PlannerTest, LayoutsAndOptionsOutOfRangeAreRefused) {
  const Layout good = PlainLayout({{"w", DType::kF32, {8, 4}}});
  Layout bad = good;
  bad.ranks[0].rows[0].local = 5;
  Layout strided = good;
  strided.ranks[0].tensors[0].stride = {8, 1};

  EXPECT_EQ(MakePlan(bad, good, {}).status().reason(), "bad_layout");
  EXPECT_NE(MakePlan(bad, good, {}).status().message().find("sender"), std::string::npos);
  EXPECT_NE(MakePlan(good, bad, {}).status().message().find("engine"), std::string::npos);
  EXPECT_TRUE(MakePlan(strided, good, {}).ok());
  EXPECT_NE(MakePlan(good, strided, {}).status().message().find("not dense"), std::string::npos);
  for (const std::int64_t bucket_bytes : {-64, 0, 64, 4095, 4100}) {
    EXPECT_EQ(MakePlan(good, good, {.bucket_bytes = bucket_bytes, .ignore = {}}).status().reason(), "bad_layout");
  }
}

// C-104: 48 layers of 128 experts. The ctest limit of the program fails when matching is quadratic.
TEST(PlannerTest, EighteenThousandExpertsArePlannedIntoStackedTensors) {
  std::vector<TensorSpec> tensors;
  Layout engine;
  engine.ranks.resize(1);
  for (int layer = 0; layer < 48; ++layer) {
    for (const char* name : {"gate", "up", "down"}) {
      const auto local = static_cast<std::int32_t>(engine.ranks[0].tensors.size());
      engine.ranks[0].tensors.push_back({fmt::format("layers.{}.{}", layer, name), DType::kBf16, {128, 4, 8}, {}});
      for (std::int64_t expert = 0; expert < 128; ++expert) {
        engine.ranks[0].rows.push_back(
            {local, {{expert, 0, 0}, {1, 4, 8}}, static_cast<std::int32_t>(tensors.size()), Box::Whole({4, 8})});
        tensors.push_back(
            {fmt::format("model.layers.{}.mlp.experts.{}.{}.weight", layer, expert, name), DType::kBf16, {4, 8}});
      }
    }
  }
  engine.tensors = tensors;
  const Layout sender = PlainLayout(std::vector<TensorSpec>(tensors.rbegin(), tensors.rend()));

  const Result<Plan> plan = MakePlan(sender, engine, {});

  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->names.loaded.size(), 18432U);
  EXPECT_EQ(plan->payload_bytes, 18432 * 64);
}

}  // namespace
}  // namespace bascule
