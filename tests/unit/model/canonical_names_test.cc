#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bridge/plan/planner.h"
#include "model/engine_layout.h"
#include "model/model_table.h"
#include "model/name_resolver.h"

namespace bascule {
namespace {

ModelConfig TinyConfig() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.layers = 1;
  config.hidden = 8;
  config.query_heads = config.kv_heads = 1;
  config.head_size = 8;
  config.ffn = 16;
  config.vocabulary = 10;
  return config;
}

// A stored tensor of the shape that the logical tensor `canonical` has, where there is one.
TensorSpec StoredAs(const ModelConfig& config, const std::string& name, const std::string& canonical) {
  for (const TensorSpec& tensor : LogicalTensors(config, DType::kBf16)) {
    if (tensor.name == canonical) return {name, DType::kBf16, tensor.shape};
  }
  return {name, DType::kBf16, {2}};
}

// The names that `stored` become.
std::vector<std::string> CanonicalOf(const ModelConfig& config, const std::vector<TensorSpec>& stored,
                                     std::vector<std::string>* ignore) {
  const Result<Layout> layout = CanonicalSenderLayout(config, PlainLayout(stored), ignore);
  if (!layout.ok()) return {layout.status().ToString()};
  std::vector<std::string> names;
  for (const TensorSpec& tensor : layout->tensors) names.push_back(tensor.name);
  return names;
}

// C-080.
TEST(CanonicalNamesTest, WrappersAndAMissingPrefixAreMappedAndAllElseStays) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"model.norm.weight", "model.norm.weight"},
      {"norm.weight", "model.norm.weight"},
      {"module.norm.weight", "model.norm.weight"},
      {"module.model.norm.weight", "model.norm.weight"},
      {"module.module.model.norm.weight", "model.norm.weight"},
      {"_orig_mod.model.norm.weight", "model.norm.weight"},
      {"_orig_mod.module.model.norm.weight", "model.norm.weight"},
      {"module._orig_mod.model.norm.weight", "model.norm.weight"},
      {"model.layers.0._orig_mod.mlp._checkpoint_wrapped_module.up_proj.weight", "model.layers.0.mlp.up_proj.weight"},
      {"_fsdp_wrapped_module.lm_head.weight", "lm_head.weight"},
      {"layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"},
      {"model.model.norm.weight", "model.model.norm.weight"},
      {"not_orig_mod.norm.weight", "not_orig_mod.norm.weight"},
      {"layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight"},
      {"mtp.lm_head.weight", "mtp.lm_head.weight"},
      {"base_model.model.model.norm.weight", "model.norm.weight"},
      {"base_model.model.lm_head.weight", "lm_head.weight"},
      {"base_model.model.model.layers.0.mlp.up_proj.base_layer.weight", "model.layers.0.mlp.up_proj.weight"},
      {"language_model.model.norm.weight", "model.norm.weight"},
      {"model.language_model.norm.weight", "model.norm.weight"},
      {"language_model.lm_head.weight", "lm_head.weight"},
      {"vision_tower.language_model.norm.weight", "vision_tower.language_model.norm.weight"},
  };
  for (const auto& [stored, canonical] : cases) {
    std::vector<std::string> ignore;
    EXPECT_EQ(CanonicalOf(TinyConfig(), {StoredAs(TinyConfig(), stored, canonical)}, &ignore),
              std::vector<std::string>{canonical});
    EXPECT_TRUE(ignore.empty()) << stored;
  }
}

// C-080.
TEST(CanonicalNamesTest, TwoSpellingsOfOneNameAreACollision) {
  std::vector<std::string> ignore;
  const Layout stored = PlainLayout({{"norm.weight", DType::kBf16, {8}}, {"model.norm.weight", DType::kBf16, {8}}});

  const Status status = CanonicalSenderLayout(TinyConfig(), stored, &ignore).status();

  EXPECT_EQ(status.reason(), "name_collision");
  EXPECT_NE(status.message().find("norm.weight and model.norm.weight are both model.norm.weight"), std::string::npos)
      << status.message();
}

// C-077.
TEST(CanonicalNamesTest, OnlyTheHeadOfATiedModelMayBeLeftOut) {
  std::vector<std::string> tied;
  std::vector<std::string> untied;
  ModelConfig config = TinyConfig();
  const std::vector<TensorSpec> heads = {{"module.lm_head.weight", DType::kBf16, {10, 8}},
                                         {"mtp.lm_head.weight", DType::kBf16, {10, 8}}};
  CanonicalOf(config, heads, &untied);
  config.tied_head = true;
  CanonicalOf(config, heads, &tied);

  EXPECT_TRUE(untied.empty());
  EXPECT_EQ(tied, std::vector<std::string>{"lm_head.weight"});
}

TEST(CanonicalNamesTest, ARotaryTableIsLeftOutWhereverItLies) {
  std::vector<std::string> ignore;

  CanonicalOf(TinyConfig(),
              {{"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {4}},
               {"model.rotary_emb.inv_freq", DType::kF32, {4}},
               {"inv_freq", DType::kF32, {4}}},
              &ignore);

  EXPECT_EQ(ignore,
            (std::vector<std::string>{"model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"}));
}

TEST(CanonicalNamesTest, WhatMayBeLeftOutIsIgnoredByThePlan) {
  ModelConfig config = TinyConfig();
  config.tied_head = true;
  const EngineLayout engine = *MakeEngineLayout(config, DType::kBf16);
  std::vector<TensorSpec> stored = LogicalTensors(config, DType::kF32);
  stored.push_back({"lm_head.weight", DType::kF32, {10, 8}});
  stored.push_back({"model.rotary_emb.inv_freq", DType::kF32, {4}});
  PlanOptions options;
  const Result<Layout> sender = CanonicalSenderLayout(config, PlainLayout(stored), &options.ignore);
  ASSERT_TRUE(sender.ok());

  const Result<Plan> plan = MakePlan(*sender, engine.layout, options);

  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->names.ignored, (std::vector<std::string>{"lm_head.weight", "model.rotary_emb.inv_freq"}));
  EXPECT_TRUE(plan->names.unexpected.empty());
}

TEST(CanonicalNamesTest, AConfigThatSizesTooMuchIsRefusedFirst) {
  ModelConfig config = TinyConfig();
  config.layers = INT64_MAX;
  std::vector<std::string> ignore;

  EXPECT_EQ(CanonicalSenderLayout(config, Layout{}, &ignore).status().reason(), "bad_config");
}

TEST(CanonicalNamesTest, AWrongShapeIsRefusedWithBothShapesAndTheRule) {
  ModelConfig config = TinyConfig();
  config.kv_heads = 1;
  std::vector<std::string> ignore;
  const Layout stored = PlainLayout({{"module.model.layers.0.self_attn.k_proj.weight", DType::kBf16, {8, 7}},
                                     {"model.norm.weight", DType::kBf16, {8}}});

  const Status status = CanonicalSenderLayout(config, stored, &ignore).status();

  EXPECT_EQ(status.reason(), "shape_mismatch");
  EXPECT_EQ(status.message(),
            "1 tensors: module.model.layers.0.self_attn.k_proj.weight: stored [8, 7], want [8, 8] = "
            "[kv_heads 1 * head_size 8, hidden 8]");
}

// C-104: 48 layers of 128 experts with three names each, the count of look-ups and not the seconds.
TEST(CanonicalNamesTest, TwentyThousandNamesTakeAFewLookUpsEach) {
  ModelConfig config = TinyConfig();
  config.architecture = "Qwen3MoeForCausalLM";
  config.layers = 48;
  config.experts = {.count = 128, .per_token = 8, .ffn = 4};
  const ModelTable table = *MakeModelTable(config);
  ASSERT_GT(table.logical.size(), 48U * 128 * 3);
  NameResolver names(table);

  for (const LogicalTensor& tensor : table.logical) {
    EXPECT_EQ(names.Resolve(tensor.name).logical, &tensor);
    EXPECT_EQ(names.Resolve("module._orig_mod." + tensor.name).logical, &tensor);
    EXPECT_EQ(names.Resolve("module.unknown." + tensor.name).logical, nullptr);
  }

  EXPECT_LE(names.lookups(), static_cast<std::int64_t>(table.logical.size()) * 7);
}

ModelConfig TinyMixtral() {
  ModelConfig config = TinyConfig();
  config.architecture = "MixtralForCausalLM";
  config.experts = {.count = 2, .per_token = 1, .ffn = 16};
  return config;
}

// C-065: both forms of the names are maps onto one.
TEST(CanonicalNamesTest, StackedExpertsBecomeOneLogicalTensorEach) {
  std::vector<std::string> ignore;
  const std::string module = "model.layers.0.mlp.";
  const Layout stored = PlainLayout({{module + "experts.gate_up_proj", DType::kBf16, {2, 32, 8}},
                                     {"_orig_mod." + module + "experts.down_proj.weight", DType::kBf16, {2, 8, 16}},
                                     {module + "gate.weight", DType::kBf16, {2, 8}}});

  const Result<Layout> canonical = CanonicalSenderLayout(TinyMixtral(), stored, &ignore);

  ASSERT_TRUE(canonical.ok()) << canonical.status().ToString();
  std::vector<std::string> rows;
  for (const MapRow& row : canonical->ranks[0].rows) {
    rows.push_back(fmt::format("{}{} is {}{}", row.local, row.local_box.ToString(),
                               canonical->tensors[static_cast<std::size_t>(row.logical)].name,
                               row.logical_box.ToString()));
  }
  const std::string moe = "model.layers.0.block_sparse_moe.";
  EXPECT_THAT(rows, testing::UnorderedElementsAre("0[0:1, 0:16, 0:8] is " + moe + "experts.0.w1.weight[0:16, 0:8]",
                                                  "0[0:1, 16:32, 0:8] is " + moe + "experts.0.w3.weight[0:16, 0:8]",
                                                  "0[1:2, 0:16, 0:8] is " + moe + "experts.1.w1.weight[0:16, 0:8]",
                                                  "0[1:2, 16:32, 0:8] is " + moe + "experts.1.w3.weight[0:16, 0:8]",
                                                  "1[0:1, 0:8, 0:16] is " + moe + "experts.0.w2.weight[0:8, 0:16]",
                                                  "1[1:2, 0:8, 0:16] is " + moe + "experts.1.w2.weight[0:8, 0:16]",
                                                  "2[0:2, 0:8] is " + moe + "gate.weight[0:2, 0:8]"));
}

TEST(CanonicalNamesTest, AShardOfStackedExpertsKeepsItsPartOfEach) {
  std::vector<std::string> ignore;
  Layout stored = PlainLayout({{"model.layers.0.mlp.experts.gate_up_proj", DType::kBf16, {2, 32, 8}}});
  stored.ranks[0].tensors[0].shape = {20, 8};  // rows 12 to 32 of expert 1
  stored.ranks[0].rows[0] = {0, Box::Whole({20, 8}), 0, {{1, 12, 0}, {1, 20, 8}}};

  const Result<Layout> canonical = CanonicalSenderLayout(TinyMixtral(), stored, &ignore);

  ASSERT_TRUE(canonical.ok()) << canonical.status().ToString();
  ASSERT_EQ(canonical->ranks[0].rows.size(), 2U);
  const MapRow& gate = canonical->ranks[0].rows[0];
  EXPECT_EQ(gate.local_box, (Box{{0, 0}, {4, 8}}));
  EXPECT_EQ(gate.logical_box, (Box{{12, 0}, {4, 8}}));
  const MapRow& up = canonical->ranks[0].rows[1];
  EXPECT_EQ(up.local_box, (Box{{4, 0}, {16, 8}}));
  EXPECT_EQ(canonical->tensors[static_cast<std::size_t>(up.logical)].name,
            "model.layers.0.block_sparse_moe.experts.1.w3.weight");
}

TEST(CanonicalNamesTest, StackedExpertsOfAnotherShapeOrBesideSeparateOnesAreRefused) {
  std::vector<std::string> ignore;
  const std::string stacked = "model.layers.0.mlp.experts.gate_up_proj";
  const Layout transposed = PlainLayout({{stacked, DType::kBf16, {2, 8, 32}}});
  const Layout twice = PlainLayout({{stacked, DType::kBf16, {2, 32, 8}},
                                    {"model.layers.0.block_sparse_moe.experts.1.w1.weight", DType::kBf16, {16, 8}}});

  const Status shape = CanonicalSenderLayout(TinyMixtral(), transposed, &ignore).status();

  EXPECT_EQ(shape.reason(), "shape_mismatch");
  EXPECT_NE(shape.message().find("stored [2, 8, 32], want [2, 32, 8] = 2 experts of [expert_ffn 16, hidden 8] over "
                                 "[expert_ffn 16, hidden 8]"),
            std::string::npos)
      << shape.message();
  EXPECT_EQ(CanonicalSenderLayout(TinyMixtral(), twice, &ignore).status().reason(), "name_collision");
}

}  // namespace
}  // namespace bascule
