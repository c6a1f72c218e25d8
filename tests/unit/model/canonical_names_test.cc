#include <gtest/gtest.h>

#include "bridge/plan/planner.h"
#include "model/engine_layout.h"

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

// The names that one stored name each becomes.
std::vector<std::string> CanonicalOf(const ModelConfig& config, const std::vector<std::string>& stored,
                                     std::vector<std::string>* ignore) {
  std::vector<TensorSpec> tensors;
  for (const std::string& name : stored) tensors.push_back({name, DType::kBf16, {2}});
  const Result<Layout> layout = CanonicalSenderLayout(config, PlainLayout(tensors), ignore);
  EXPECT_TRUE(layout.ok()) << layout.status().ToString();
  std::vector<std::string> names;
  for (const TensorSpec& tensor : layout->tensors) names.push_back(tensor.name);
  return names;
}

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
  };
  for (const auto& [stored, canonical] : cases) {
    std::vector<std::string> ignore;
    EXPECT_EQ(CanonicalOf(TinyConfig(), {stored}, &ignore), std::vector<std::string>{canonical});
    EXPECT_TRUE(ignore.empty()) << stored;
  }
}

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
  CanonicalOf(config, {"module.lm_head.weight", "mtp.lm_head.weight"}, &untied);
  config.tied_head = true;
  CanonicalOf(config, {"module.lm_head.weight", "mtp.lm_head.weight"}, &tied);

  EXPECT_TRUE(untied.empty());
  EXPECT_EQ(tied, std::vector<std::string>{"lm_head.weight"});
}

TEST(CanonicalNamesTest, ARotaryTableIsLeftOutWhereverItLies) {
  std::vector<std::string> ignore;

  CanonicalOf(TinyConfig(), {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", "inv_freq"},
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

}  // namespace
}  // namespace bascule
