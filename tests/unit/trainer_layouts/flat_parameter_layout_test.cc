#include "trainer_side/layouts/flat_parameter_layout.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/unit/plan/random_layouts.h"

namespace bascule {
namespace {

const std::vector<TensorSpec> kTensors = {
    {"q", DType::kF32, {6, 4}}, {"k", DType::kF32, {2, 4}}, {"norm", DType::kF32, {3}}};

// Element e of logical tensor t, by its name; -1: padding.
using Element = std::pair<std::string, std::int64_t>;
const Element kPadding = {"", -1};

// The shards of one unit as its ranks hold them, read through views and rows.
std::vector<std::vector<Element>> ShardsOf(const FlatLayout& flat, std::int32_t unit) {
  std::vector<std::vector<Element>> shards;
  for (std::size_t r = 0; r < flat.views.size(); ++r) {
    const RankLayout& rank = flat.layout.ranks[r];
    std::vector<Element>& shard =
        shards.emplace_back(static_cast<std::size_t>(flat.shard_elements[static_cast<std::size_t>(unit)]), kPadding);
    for (std::size_t t = 0; t < rank.tensors.size(); ++t) {
      if (flat.views[r][t].unit != unit) continue;
      const MapRow& row = rank.rows[t];
      EXPECT_EQ(row.local, static_cast<std::int32_t>(t));
      EXPECT_EQ(row.local_box, Box::Whole(rank.tensors[t].shape));
      const TensorSpec& spec = flat.layout.tensors[static_cast<std::size_t>(row.logical)];
      auto at = static_cast<std::size_t>(flat.views[r][t].offset);
      for (const std::int64_t position : PositionsOf(row.logical_box, spec.shape))
        shard.at(at++) = {spec.name, position};
    }
  }
  return shards;
}

// The tensors flattened one behind the other, padded, cut.
std::vector<std::vector<Element>> FlattenPadAndCut(const std::vector<TensorSpec>& tensors, std::size_t alignment,
                                                   std::size_t ranks) {
  std::vector<Element> flat;
  for (const TensorSpec& tensor : tensors) {
    while (flat.size() % alignment != 0) flat.push_back(kPadding);
    for (std::int64_t e = 0; e < tensor.Elements(); ++e) flat.emplace_back(tensor.name, e);
  }
  while (flat.size() % ranks != 0) flat.push_back(kPadding);
  std::vector<std::vector<Element>> shards;
  const auto size = static_cast<std::ptrdiff_t>(flat.size() / ranks);
  for (std::ptrdiff_t r = 0; std::cmp_less(r, ranks); ++r) {
    shards.emplace_back(flat.begin() + r * size, flat.begin() + (r + 1) * size);
  }
  return shards;
}

TEST(FlatParameterLayoutTest, TensorsAreConcatenatedPaddedAndCutEvenly) {
  const auto flat = FlatParameterLayout(kTensors, {{.name = "unit", .tensors = {"q", "k", "norm"}}}, 3);

  ASSERT_TRUE(flat.ok()) << flat.status().ToString();
  EXPECT_EQ(ShardsOf(*flat, 0), FlattenPadAndCut(kTensors, 1, 3));
  EXPECT_EQ(flat->layout.ranks[2].tensors[1].name, "unit:norm[0:3]");
  EXPECT_EQ(flat->views[2][1], (FlatView{.unit = 0, .offset = 8}));
}

TEST(FlatParameterLayoutTest, AnyTensorsOverAnyRanksAreWhatAListOfElementsCutByHandIs) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed=" << seed);
    std::mt19937_64 random(seed);
    std::vector<TensorSpec> tensors;
    FlatUnit unit{.name = "unit", .alignment = static_cast<std::int64_t>(1 + random() % 5)};
    for (std::uint64_t t = 0; t <= random() % 4; ++t) {
      Dims shape;
      for (std::uint64_t d = random() % 4; d > 0; --d) shape.push_back(static_cast<std::int64_t>(random() % 6));
      tensors.push_back({std::to_string(t), DType::kBf16, shape});
      unit.tensors.push_back(tensors.back().name);
    }
    const auto ranks = static_cast<int>(1 + random() % 17);

    const auto flat = FlatParameterLayout(tensors, {unit}, ranks);

    ASSERT_TRUE(flat.ok()) << flat.status().ToString();
    ASSERT_EQ(ShardsOf(*flat, 0),
              FlattenPadAndCut(tensors, static_cast<std::size_t>(unit.alignment), static_cast<std::size_t>(ranks)));
  }
}

TEST(FlatParameterLayoutTest, ATensorMayLieAcrossThreeRanks) {
  const auto flat = FlatParameterLayout({{"w", DType::kF32, {5, 3}}}, {{.name = "unit", .tensors = {"w"}}}, 3);

  ASSERT_TRUE(flat.ok());
  EXPECT_EQ(flat->shard_elements, std::vector<std::int64_t>{5});
  EXPECT_EQ(flat->layout.ranks[1].rows[0].logical_box, (Box{{1, 2}, {1, 1}}));
  EXPECT_EQ(flat->layout.ranks[1].rows[1].logical_box, (Box{{2, 0}, {1, 3}}));
  EXPECT_EQ(flat->layout.ranks[1].rows[2].logical_box, (Box{{3, 0}, {1, 1}}));
}

TEST(FlatParameterLayoutTest, RanksBehindTheLastElementHoldNothing) {
  const auto flat = FlatParameterLayout({{"w", DType::kF32, {5}}}, {{.name = "unit", .tensors = {"w"}}}, 4);

  ASSERT_TRUE(flat.ok());
  EXPECT_EQ(flat->shard_elements, std::vector<std::int64_t>{2});
  EXPECT_EQ(flat->layout.ranks[2].rows.size(), 1U);
  EXPECT_TRUE(flat->layout.ranks[3].tensors.empty());
}

TEST(FlatParameterLayoutTest, WhatCannotBeAFlatParameterIsRefused) {
  const std::vector<TensorSpec> mixed = {{"a", DType::kF32, {4}}, {"b", DType::kBf16, {4}}};
  const auto reason = [](const Result<FlatLayout>& flat) { return flat.ok() ? "" : flat.status().reason(); };

  EXPECT_EQ(reason(FlatParameterLayout(mixed, {{.name = "u", .tensors = {"a", "b"}}}, 2)), "mixed_dtypes");
  EXPECT_EQ(reason(FlatParameterLayout(mixed, {{.name = "u", .tensors = {"a"}}}, 2)), "bad_trainer_layout");
  EXPECT_EQ(reason(FlatParameterLayout(kTensors, {{.name = "u", .tensors = {}}}, 2)), "bad_trainer_layout");
  EXPECT_EQ(reason(FlatParameterLayout(kTensors, {{.name = "u", .tensors = {"other"}}}, 2)), "bad_trainer_layout");
  EXPECT_EQ(reason(FlatParameterLayout(mixed, UnitPerLayer(mixed), 0)), "bad_trainer_layout");
  EXPECT_EQ(reason(FlatParameterLayout({{"a", DType::kU8, {INT64_MAX}}, {"b", DType::kU8, {INT64_MAX}}},
                                       {{.name = "u", .tensors = {"a", "b"}}}, 2)),
            "bad_trainer_layout");
}

TEST(FlatParameterLayoutTest, AUnitPerLayerSplitsByType) {
  const std::vector<TensorSpec> tensors = {{"model.embed_tokens.weight", DType::kBf16, {4, 2}},
                                           {"model.layers.0.norm.weight", DType::kF32, {2}},
                                           {"model.layers.0.q.weight", DType::kBf16, {2, 2}},
                                           {"model.layers.10.q.weight", DType::kBf16, {2, 2}},
                                           {"model.norm.weight", DType::kBf16, {2}}};

  const std::vector<FlatUnit> units = UnitPerLayer(tensors);

  ASSERT_EQ(units.size(), 4U);
  EXPECT_EQ(units[0].name, "_fsdp_wrapped_module._flat_param");
  EXPECT_EQ(units[0].tensors, (std::vector<std::string>{"model.embed_tokens.weight", "model.norm.weight"}));
  EXPECT_EQ(units[1].name, "model.layers.0._fsdp_wrapped_module._flat_param");
  EXPECT_EQ(units[2].name, "model.layers.0._fsdp_wrapped_module._flat_param.BF16");
  EXPECT_EQ(units[3].tensors, std::vector<std::string>{"model.layers.10.q.weight"});
  EXPECT_TRUE(FlatParameterLayout(tensors, units, 3).ok());
}

}  // namespace
}  // namespace bascule
