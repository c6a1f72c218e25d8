#include "trainer_side/layouts/megatron_layout.h"

#include <gtest/gtest.h>

#include "bridge/plan/planner.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

ModelConfig TinyModel() {
  return {.architecture = "LlamaForCausalLM",
          .layers = 4,
          .hidden = 8,
          .query_heads = 4,
          .kv_heads = 2,
          .head_size = 2,
          .ffn = 6,
          .vocabulary = 130};
}

Result<Layout> Make(const ModelConfig& config, const MegatronParallel& parallel, int ranks) {
  return MegatronLayout(config, LogicalTensors(config, DType::kBf16), parallel, ranks);
}

std::string ReasonOf(const ModelConfig& config, const MegatronParallel& parallel, int ranks) {
  const auto layout = Make(config, parallel, ranks);
  return layout.ok() ? "" : std::string(layout.status().reason());
}

std::vector<std::string> NamesOf(const RankLayout& rank) {
  std::vector<std::string> names;
  for (const LocalTensor& tensor : rank.tensors) names.push_back(tensor.name);
  return names;
}

// Rows of local tensor `name`, as text: "model...q_proj.weight[0:2, 0:8] at [0:2, 0:8]".
std::vector<std::string> RowsOf(const Layout& layout, std::size_t rank, const std::string& name) {
  std::vector<std::string> rows;
  for (const MapRow& row : layout.ranks[rank].rows) {
    if (layout.ranks[rank].tensors[static_cast<std::size_t>(row.local)].name != name) continue;
    std::string logical = layout.tensors[static_cast<std::size_t>(row.logical)].name;
    rows.push_back(logical.substr(logical.find("proj") == std::string::npos ? 0 : logical.find("proj") - 2) +
                   row.logical_box.ToString() + " at " + row.local_box.ToString());
  }
  return rows;
}

TEST(MegatronLayoutTest, ARankHoldsItsQueryGroupsOneBehindTheOther) {
  ModelConfig config = TinyModel();
  config.kv_heads = 4;
  const auto layout = Make(config, {.tensor = 2}, 2);

  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_EQ(
      RowsOf(*layout, 1, "decoder.layers.0.self_attention.linear_qkv.weight"),
      (std::vector<std::string>{"q_proj.weight[4:6, 0:8] at [0:2, 0:8]", "k_proj.weight[4:6, 0:8] at [2:4, 0:8]",
                                "v_proj.weight[4:6, 0:8] at [4:6, 0:8]", "q_proj.weight[6:8, 0:8] at [6:8, 0:8]",
                                "k_proj.weight[6:8, 0:8] at [8:10, 0:8]", "v_proj.weight[6:8, 0:8] at [10:12, 0:8]"}));
}

TEST(MegatronLayoutTest, PaddingOfTheVocabularyHasNoRow) {
  const auto layout = Make(TinyModel(), {.tensor = 2}, 2);

  ASSERT_TRUE(layout.ok());
  for (const char* name : {"embedding.word_embeddings.weight", "output_layer.weight"}) {
    const std::vector<std::string> rows = RowsOf(*layout, 1, name);
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_TRUE(rows[0].ends_with("[128:130, 0:8] at [0:2, 0:8]")) << rows[0];
  }
  EXPECT_EQ(layout->ranks[1].tensors[0].shape, (Dims{128, 8}));
}

TEST(MegatronLayoutTest, ARankWithNothingButPaddingHasATensorWithoutRows) {
  const auto layout = Make(TinyModel(), {.tensor = 2, .vocabulary_multiple = 256}, 2);

  ASSERT_TRUE(layout.ok());
  EXPECT_TRUE(RowsOf(*layout, 1, "embedding.word_embeddings.weight").empty());
  EXPECT_EQ(layout->ranks[1].tensors[0].shape, (Dims{256, 8}));
}

TEST(MegatronLayoutTest, StagesNumberTheirLayersFromZeroAndVirtualStagesAreModelsOfTheirOwn) {
  const auto layout = Make(TinyModel(), {.pipeline = 2, .virtual_stages = 2}, 2);

  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  const std::vector<std::string> first = NamesOf(layout->ranks[0]);
  const std::vector<std::string> last = NamesOf(layout->ranks[1]);
  EXPECT_EQ(first.front(), "model0.embedding.word_embeddings.weight");
  EXPECT_EQ(last.back(), "model1.output_layer.weight");
  EXPECT_EQ(RowsOf(*layout, 0, "model1.decoder.layers.0.mlp.linear_fc1.layer_norm_weight"),
            std::vector<std::string>{"model.layers.2.post_attention_layernorm.weight[0:8] at [0:8]"});
  EXPECT_EQ(RowsOf(*layout, 1, "model0.decoder.layers.0.mlp.linear_fc1.layer_norm_weight"),
            std::vector<std::string>{"model.layers.1.post_attention_layernorm.weight[0:8] at [0:8]"});
}

TEST(MegatronLayoutTest, FirstAndLastStageMayBeShorter) {
  const auto layout = Make(TinyModel(), {.pipeline = 3, .first_stage_layers = 1, .last_stage_layers = 1}, 3);

  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_EQ(RowsOf(*layout, 1, "decoder.layers.1.mlp.linear_fc1.layer_norm_weight"),
            std::vector<std::string>{"model.layers.2.post_attention_layernorm.weight[0:8] at [0:8]"});
  EXPECT_EQ(RowsOf(*layout, 2, "decoder.layers.0.mlp.linear_fc1.layer_norm_weight"),
            std::vector<std::string>{"model.layers.3.post_attention_layernorm.weight[0:8] at [0:8]"});
}

TEST(MegatronLayoutTest, ATiedHeadIsACopyOnTheLastStageOnlyWhereThereAreSeveral) {
  ModelConfig config = TinyModel();
  config.tied_head = true;

  const auto one = Make(config, {}, 1);
  const auto two = Make(config, {.pipeline = 2}, 2);

  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(NamesOf(one->ranks[0]).back(), "decoder.final_layernorm.weight");
  EXPECT_EQ(RowsOf(*two, 1, "output_layer.weight"),
            std::vector<std::string>{"model.embed_tokens.weight[0:130, 0:8] at [0:130, 0:8]"});
}

TEST(MegatronLayoutTest, RanksThatTheSizesDoNotUseHoldCopies) {
  const auto layout = Make(TinyModel(), {.tensor = 2, .pipeline = 2}, 8);

  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->ranks[0], layout->ranks[2]);
  EXPECT_EQ(layout->ranks[1], layout->ranks[3]);
  EXPECT_EQ(layout->ranks[5], layout->ranks[7]);
  EXPECT_NE(layout->ranks[0], layout->ranks[1]);
  EXPECT_NE(layout->ranks[0], layout->ranks[4]);
}

TEST(MegatronLayoutTest, EveryArchitectureReachesAnEngine) {
  for (const char* architecture : {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                                   "Phi3ForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "MixtralForCausalLM",
                                   "Qwen3MoeForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"}) {
    SCOPED_TRACE(architecture);
    ModelConfig config = TinyModel();
    config.architecture = architecture;
    config.qk_norm = true;
    config.experts = {.count = 4, .per_token = 1, .ffn = 4, .shared_ffn = 4, .router_bias = true};
    config.latent = {.query_rank = 6, .kv_rank = 4, .nope_head_size = 2, .rope_head_size = 2};
    const auto engine = MakeEngineLayout(config, DType::kBf16, {.tensor = 2});
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();

    const auto layout = MegatronLayout(config, engine->layout.tensors, {.tensor = 2, .pipeline = 2}, 4);

    ASSERT_TRUE(layout.ok()) << layout.status().ToString();
    const auto plan = MakePlan(*layout, engine->layout, {});
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  }
}

TEST(MegatronLayoutTest, TensorsThatTheModelDoesNotHaveStayWholeOnRankZero) {
  std::vector<TensorSpec> tensors = LogicalTensors(TinyModel(), DType::kBf16);
  tensors.insert(tensors.begin(), {"extra", DType::kF32, {3}});

  const auto layout = MegatronLayout(TinyModel(), tensors, {.tensor = 2}, 2);

  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  EXPECT_EQ(NamesOf(layout->ranks[0]).back(), "extra");
  EXPECT_EQ(RowsOf(*layout, 0, "extra"), std::vector<std::string>{"extra[0:3] at [0:3]"});
}

TEST(MegatronLayoutTest, WhatMegatronCannotHoldIsRefused) {
  ModelConfig config = TinyModel();
  std::vector<TensorSpec> tensors = LogicalTensors(config, DType::kBf16);
  const auto reason = [&] {
    const auto layout = MegatronLayout(config, tensors, {}, 1);
    return layout.ok() ? "" : std::string(layout.status().reason());
  };

  EXPECT_EQ(ReasonOf(config, {.tensor = 5}, 5), "does_not_divide");
  EXPECT_EQ(ReasonOf(config, {.tensor = 0}, 1), "bad_trainer_layout");
  EXPECT_EQ(ReasonOf(config, {.tensor = 2}, 3), "bad_trainer_layout");
  EXPECT_EQ(ReasonOf(config, {.expert = 2}, 2), "bad_trainer_layout");
  EXPECT_EQ(ReasonOf(config, {.pipeline = 3}, 3), "bad_trainer_layout");
  EXPECT_EQ(ReasonOf(config, {.virtual_stages = 2}, 1), "bad_trainer_layout");
  EXPECT_EQ(ReasonOf(config, {.pipeline = 2, .first_stage_layers = 4}, 2), "bad_trainer_layout");
  EXPECT_EQ(ReasonOf(config, {.pipeline = 1, .first_stage_layers = 2, .last_stage_layers = 2}, 1),
            "bad_trainer_layout");
  tensors[1].dtype = DType::kF32;
  EXPECT_EQ(reason(), "");  // a norm
  tensors[2].dtype = DType::kF32;
  EXPECT_EQ(reason(), "mixed_dtypes");  // q
  tensors[1].shape = {9};
  EXPECT_EQ(reason(), "shape_mismatch");
  tensors.erase(tensors.begin() + 1);
  EXPECT_EQ(reason(), "tensor_missing");
  config.architecture = "MixtralForCausalLM";
  config.experts = {.count = 6, .per_token = 1, .ffn = 4};
  EXPECT_EQ(ReasonOf(config, {.expert = 4}, 4), "does_not_divide");
  config.quantization.method = "fp8";
  EXPECT_EQ(ReasonOf(config, {}, 1), "unsupported_quantization");
}

}  // namespace
}  // namespace bascule
