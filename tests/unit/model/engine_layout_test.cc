#include "model/engine_layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace bascule {
namespace {

ModelConfig DenseConfig() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.layers = 2;
  config.hidden = 64;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_size = 16;
  config.ffn = 96;
  config.vocabulary = 130;
  return config;
}

const LocalTensor& LocalOf(const EngineLayout& engine, int tensor) {
  return engine.layout.ranks[0].tensors.at(static_cast<std::size_t>(tensor));
}

TEST(EngineLayoutTest, TheDecoderFindsEveryTensorUnderItsNameAndShape) {
  const Result<EngineLayout> engine = MakeEngineLayout(DenseConfig(), DType::kBf16);

  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  const EngineTensors& tensors = engine->tensors;
  const EngineLayerTensors& layer = tensors.layers.at(1);
  const struct {
    int tensor;
    const char* name;
    Dims shape;
  } expected[] = {
      {tensors.embedding, "model.embed_tokens.weight", {192, 64}},
      {layer.input_norm, "model.layers.1.input_layernorm.weight", {64}},
      {layer.qkv, "model.layers.1.self_attn.qkv_proj.weight", {64 + 32 + 32, 64}},
      {layer.out, "model.layers.1.self_attn.o_proj.weight", {64, 64}},
      {layer.post_attention_norm, "model.layers.1.post_attention_layernorm.weight", {64}},
      {layer.gate_up, "model.layers.1.mlp.gate_up_proj.weight", {2 * 96, 64}},
      {layer.down, "model.layers.1.mlp.down_proj.weight", {64, 96}},
      {tensors.final_norm, "model.norm.weight", {64}},
      {tensors.head, "lm_head.weight", {192, 64}},
  };
  for (const auto& e : expected) {
    EXPECT_EQ(LocalOf(*engine, e.tensor).name, e.name);
    EXPECT_EQ(LocalOf(*engine, e.tensor).shape, e.shape) << e.name;
  }
  EXPECT_EQ(tensors.padded_vocabulary, 192);
  EXPECT_EQ(layer.q_norm, -1);
  EXPECT_EQ(layer.k_norm, -1);
  EXPECT_EQ(engine->layout.ranks[0].tensors.size(), 1U + 2 * 6 + 2);
}

TEST(EngineLayoutTest, ATiedHeadIsTheEmbeddingAndQwenHasNormsPerHead) {
  ModelConfig config = DenseConfig();
  config.tied_head = true;
  config.qk_norm = true;

  const Result<EngineLayout> engine = MakeEngineLayout(config, DType::kF32);

  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  EXPECT_EQ(engine->tensors.head, engine->tensors.embedding);
  EXPECT_EQ(LocalOf(*engine, engine->tensors.layers[0].q_norm).shape, (Dims{16}));
  EXPECT_EQ(LocalOf(*engine, engine->tensors.layers[0].k_norm).dtype, DType::kF32);
  for (const TensorSpec& tensor : engine->layout.tensors) EXPECT_NE(tensor.name, "lm_head.weight");
}

TEST(EngineLayoutTest, LogicalTensorsComeInTheOrderOfComputation) {
  ModelConfig config = DenseConfig();
  config.layers = 1;
  config.qk_norm = true;

  std::vector<std::string> names;
  for (const TensorSpec& tensor : LogicalTensors(config, DType::kBf16)) names.push_back(tensor.name);

  EXPECT_EQ(names, (std::vector<std::string>{
                       "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                       "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                       "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.q_norm.weight",
                       "model.layers.0.self_attn.k_norm.weight", "model.layers.0.self_attn.o_proj.weight",
                       "model.layers.0.post_attention_layernorm.weight", "model.layers.0.mlp.gate_proj.weight",
                       "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight", "model.norm.weight",
                       "lm_head.weight"}));
}

TEST(EngineLayoutTest, AVocabularyThatIsAMultipleAlreadyHasNoPadding) {
  ModelConfig config = DenseConfig();
  config.vocabulary = 128;

  const Result<EngineLayout> engine = MakeEngineLayout(config, DType::kBf16);

  ASSERT_TRUE(engine.ok());
  EXPECT_EQ(engine->tensors.padded_vocabulary, 128);
  for (const MapRow& row : engine->layout.ranks[0].rows) EXPECT_NE(row.logical, kFill);
}

TEST(EngineLayoutTest, SizesThatOverflowOrDoNotDivideAreRefusedByName) {
  const auto refusal = [](auto change) {
    ModelConfig config = DenseConfig();
    change(config);
    const Status status = MakeEngineLayout(config, DType::kBf16).status();
    EXPECT_EQ(status.reason(), "bad_config") << status.ToString();
    return status.message();
  };

  EXPECT_NE(refusal([](ModelConfig& c) { c.kv_heads = 3; }).find("query_heads"), std::string::npos);
  EXPECT_NE(refusal([](ModelConfig& c) { c.layers = 0; }).find("layers"), std::string::npos);
  EXPECT_NE(refusal([](ModelConfig& c) { c.layers = INT64_MAX; }).find("layers"), std::string::npos);
  EXPECT_NE(refusal([](ModelConfig& c) { c.layers = 10001; }).find("layers"), std::string::npos);
  EXPECT_NE(refusal([](ModelConfig& c) { c.experts = {.count = 1 << 20, .ffn = 1}; }).find("experts"),
            std::string::npos);
  EXPECT_NE(refusal([](ModelConfig& c) { c.hidden = -1; }).find("hidden"), std::string::npos);
  EXPECT_NE(refusal([](ModelConfig& c) { c.head_size = std::int64_t{1} << 31; }).find("heads"), std::string::npos);
  EXPECT_NE(refusal([](ModelConfig& c) { c.vocabulary = c.hidden = std::int64_t{1} << 31; }).find("2^63"),
            std::string::npos);
}

// The rows of `name` on one rank, as "local box <- logical tensor, logical box".
std::vector<std::string> RowsOf(const EngineLayout& engine, int rank, const std::string& name) {
  const RankLayout& layout = engine.layout.ranks.at(static_cast<std::size_t>(rank));
  std::vector<std::string> rows;
  for (const MapRow& row : layout.rows) {
    if (layout.tensors[static_cast<std::size_t>(row.local)].name != name) continue;
    rows.push_back(row.logical == kFill ? row.local_box.ToString() + " fill"
                                        : fmt::format("{} <- {} {}", row.local_box.ToString(),
                                                      engine.layout.tensors[static_cast<std::size_t>(row.logical)].name,
                                                      row.logical_box.ToString()));
  }
  return rows;
}

// C-059, C-061.
TEST(TensorParallelTest, RanksBeyondTheKvHeadsHoldTheHeadOfTheirQueries) {
  const Result<EngineLayout> engine = MakeEngineLayout(DenseConfig(), DType::kBf16, {.tensor = 4});

  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  ASSERT_EQ(engine->layout.ranks.size(), 4U);
  for (int rank = 0; rank < 4; ++rank) {
    const int q = 16 * rank, kv = 16 * (rank / 2);
    EXPECT_EQ(RowsOf(*engine, rank, "model.layers.1.self_attn.qkv_proj.weight"),
              (std::vector<std::string>{
                  fmt::format("[0:16, 0:64] <- model.layers.1.self_attn.q_proj.weight [{}:{}, 0:64]", q, q + 16),
                  fmt::format("[16:32, 0:64] <- model.layers.1.self_attn.k_proj.weight [{}:{}, 0:64]", kv, kv + 16),
                  fmt::format("[32:48, 0:64] <- model.layers.1.self_attn.v_proj.weight [{}:{}, 0:64]", kv, kv + 16)}));
    EXPECT_EQ(RowsOf(*engine, rank, "model.layers.1.self_attn.o_proj.weight"),
              std::vector<std::string>{
                  fmt::format("[0:64, 0:16] <- model.layers.1.self_attn.o_proj.weight [0:64, {}:{}]", q, q + 16)});
  }
}

// C-068.
TEST(TensorParallelTest, TheVocabularysEndMayFallInsideARankAndTheLastMayHoldPaddingOnly) {
  const Result<EngineLayout> engine = MakeEngineLayout(DenseConfig(), DType::kBf16, {.tensor = 4});

  ASSERT_TRUE(engine.ok());
  EXPECT_EQ(engine->tensors.padded_vocabulary, 192);
  for (const std::string name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    EXPECT_EQ(RowsOf(*engine, 1, name), std::vector<std::string>{"[0:48, 0:64] <- " + name + " [48:96, 0:64]"});
    EXPECT_EQ(RowsOf(*engine, 2, name),
              (std::vector<std::string>{"[0:34, 0:64] <- " + name + " [96:130, 0:64]", "[34:48, 0:64] fill"}));
    EXPECT_EQ(RowsOf(*engine, 3, name), std::vector<std::string>{"[0:48, 0:64] fill"});
  }
}

TEST(TensorParallelTest, SizesThatDoNotDivideAreRefusedWithTheNumbers) {
  const auto refusal = [](int ranks, auto change) {
    ModelConfig config = DenseConfig();
    change(config);
    const Status status = MakeEngineLayout(config, DType::kBf16, {.tensor = ranks}).status();
    EXPECT_EQ(status.reason(), "does_not_divide") << status.ToString();
    return status.message();
  };

  EXPECT_EQ(refusal(3, [](ModelConfig&) {}),
            "model.layers.0.self_attn.q_proj.weight: 64 = 4 heads of 16 do not divide among 3 ranks");
  EXPECT_EQ(refusal(8, [](ModelConfig&) {}),
            "model.layers.0.self_attn.q_proj.weight: 64 = 4 heads of 16 do not divide among 8 ranks");
  EXPECT_EQ(refusal(4, [](ModelConfig& c) { c.query_heads = 12, c.kv_heads = 3; }),
            "model.layers.0.self_attn.k_proj.weight: 48 = 3 heads of 16 do not divide among 4 ranks, nor the ranks "
            "among the heads");
  EXPECT_EQ(refusal(4, [](ModelConfig& c) { c.ffn = 98; }),
            "model.layers.0.mlp.gate_proj.weight: 98 do not divide among 4 ranks");
  EXPECT_EQ(refusal(5, [](ModelConfig&) {}),
            "model.embed_tokens.weight padded to 192: 192 do not divide among 5 ranks");
}

TEST(TensorParallelTest, PipelineStagesHoldRangesOfLayersAndATiedHeadLiesOnBothEnds) {
  ModelConfig config = DenseConfig();
  config.tied_head = true;
  config.layers = 3;

  const Result<EngineLayout> engine = MakeEngineLayout(config, DType::kBf16, {.tensor = 2, .pipeline = 2});

  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  ASSERT_EQ(engine->layout.ranks.size(), 4U);
  const auto holds = [&](int rank, const std::string& name) { return !RowsOf(*engine, rank, name).empty(); };
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(holds(rank, "model.embed_tokens.weight"));
    EXPECT_EQ(holds(rank, "model.norm.weight"), rank >= 2);
    EXPECT_EQ(holds(rank, "model.layers.0.input_layernorm.weight"), rank < 2);
    EXPECT_EQ(holds(rank, "model.layers.1.input_layernorm.weight"), rank >= 2);
    EXPECT_EQ(holds(rank, "model.layers.2.input_layernorm.weight"), rank >= 2);
  }
  EXPECT_EQ(MakeEngineLayout(config, DType::kBf16, {.pipeline = 4}).status().reason(), "bad_parallel_layout");
}

TEST(TensorParallelTest, TensorsKeepTheirTypesAndOneEngineTensorHasOne) {
  const DTypeOf norms_in_fp32 = [](std::string_view name) {
    return name.find("norm") == std::string_view::npos ? DType::kBf16 : DType::kF32;
  };
  const DTypeOf keys_in_fp32 = [](std::string_view name) {
    return name.find("k_proj") == std::string_view::npos ? DType::kBf16 : DType::kF32;
  };

  const Result<EngineLayout> engine = MakeEngineLayout(DenseConfig(), norms_in_fp32);

  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  EXPECT_EQ(LocalOf(*engine, engine->tensors.final_norm).dtype, DType::kF32);
  EXPECT_EQ(LocalOf(*engine, engine->tensors.head).dtype, DType::kBf16);
  const Status mixed = MakeEngineLayout(DenseConfig(), keys_in_fp32).status();
  EXPECT_EQ(mixed.reason(), "mixed_dtypes");
  EXPECT_NE(mixed.message().find("qkv_proj.weight cannot hold both BF16"), std::string::npos) << mixed.message();
}

}  // namespace
}  // namespace bascule
