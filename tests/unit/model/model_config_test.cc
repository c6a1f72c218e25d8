#include "model/model_config.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "model/architecture.h"
#include "tests/support/case_name.h"

namespace bascule {
namespace {

// SmolLM2-135M-Instruct as published.
constexpr const char* kSmolLm2 = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
  "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
  "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null,
  "rope_theta": 100000, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.42.3",
  "vocab_size": 49152, "use_cache": true})";

// A small Qwen3 in the newer spelling, where theta sits in rope_parameters.
constexpr const char* kQwen3 = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 1024, "intermediate_size": 3072, "layer_types": ["full_attention", "full_attention"],
  "max_position_embeddings": 40960, "max_window_layers": 28, "num_attention_heads": 16, "num_hidden_layers": 2,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
  "rope_scaling": null, "sliding_window": 4096, "tie_word_embeddings": true, "use_sliding_window": false,
  "vocab_size": 151936})";

// `json` with `"key": value` replaced, or added where it was not; an empty value takes the key away.
std::string With(std::string json, const std::string& key, const std::string& value) {
  const std::string quoted = "\"" + key + "\":";
  const std::size_t at = json.find(quoted);
  if (at != std::string::npos) {
    std::size_t end = at + quoted.size();
    int depth = 0;
    while (depth > 0 || (json[end] != ',' && json[end] != '}')) {
      if (json[end] == '[' || json[end] == '{') ++depth;
      if (json[end] == ']' || json[end] == '}') --depth;
      ++end;
    }
    json.erase(at, end - at + (json[end] == ',' ? 1 : 0));
  }
  if (!value.empty()) json.insert(json.find('{') + 1, quoted + value + ",");
  return json;
}

TEST(ModelConfigTest, ParsesSmolLm2AsPublished) {
  const Result<ModelConfig> model = ParseModelConfig(kSmolLm2);

  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(*model, (ModelConfig{.architecture = "LlamaForCausalLM",
                                 .layers = 30,
                                 .hidden = 576,
                                 .query_heads = 9,
                                 .kv_heads = 3,
                                 .head_size = 64,
                                 .ffn = 1536,
                                 .vocabulary = 49152,
                                 .max_positions = 8192,
                                 .rms_norm_eps = 1e-5,
                                 .rope_theta = 100000,
                                 .tied_head = true,
                                 .qk_norm = false}));
}

TEST(ModelConfigTest, ParsesQwen3WithThetaInRopeParametersAndASlidingWindowThatIsOff) {
  const Result<ModelConfig> model = ParseModelConfig(kQwen3);

  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_TRUE(model->qk_norm);
  EXPECT_EQ(model->head_size, 128);
  EXPECT_EQ(model->rope_theta, 1e6);
  EXPECT_TRUE(CheckDecodable(*model).ok());
}

TEST(ModelConfigTest, LeftOutKeysTakeHuggingFacesDefaults) {
  std::string json = kSmolLm2;
  for (const char* key : {"num_key_value_heads", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "hidden_act"}) {
    json = With(json, key, "");
  }

  const Result<ModelConfig> model = ParseModelConfig(json);

  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(model->kv_heads, 9);
  EXPECT_EQ(model->rms_norm_eps, 1e-6);
  EXPECT_EQ(model->rope_theta, 10000);
  EXPECT_FALSE(model->tied_head);
}

struct Refusal {
  const char *key, *value, *reason;
  friend std::ostream& operator<<(std::ostream& out, const Refusal& r) { return out << r.key << "=" << r.value; }
};

class RefusedConfigTest : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedConfigTest, IsRefusedByReasonAndNamesItsKey) {
  const auto [key, value, reason] = GetParam();

  const Status status = ParseModelConfig(With(kSmolLm2, key, value)).status();

  EXPECT_EQ(status.reason(), reason);
  EXPECT_NE(status.message().find(key), std::string::npos) << status.message();
}

class UndecodableConfigTest : public testing::TestWithParam<Refusal> {};

TEST_P(UndecodableConfigTest, IsMappedAndRefusedByTheDecoder) {
  const auto [key, value, reason] = GetParam();

  const Result<ModelConfig> model = ParseModelConfig(With(kSmolLm2, key, value));

  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const Status status = CheckDecodable(*model);
  EXPECT_EQ(status.reason(), reason);
  EXPECT_NE(status.message().find(key), std::string::npos) << status.message();
  EXPECT_NE(model->Description(), ParseModelConfig(kSmolLm2)->Description());
}

INSTANTIATE_TEST_SUITE_P(
    SettingsThatChangeTheResult, UndecodableConfigTest,
    testing::Values(Refusal{"rope_scaling", R"({"type": "linear", "factor": 2.0})", "unsupported_rope_scaling"},
                    Refusal{"rope_scaling", R"({"factor": 2.0})", "unsupported_rope_scaling"},
                    Refusal{"rope_parameters", R"({"rope_type": "yarn", "rope_theta": 1e5})",
                            "unsupported_rope_scaling"},
                    Refusal{"hidden_act", R"("gelu")", "unsupported_activation"},
                    Refusal{"use_sliding_window", "true", "unsupported_sliding_window"},
                    Refusal{"sliding_window", "4096", "unsupported_sliding_window"},
                    Refusal{"layer_types", R"(["full_attention", "sliding_attention"])", "unsupported_sliding_window"},
                    Refusal{"partial_rotary_factor", "0.5", "unsupported_partial_rotary"},
                    Refusal{"quantization_config", R"({"quant_method": "fp8"})", "unsupported_quantization"}),
    NameOfCase<Refusal>);

INSTANTIATE_TEST_SUITE_P(
    BadValues, RefusedConfigTest,
    testing::Values(Refusal{"architectures", R"(["GPT2LMHeadModel"])", "unknown_architecture"},
                    Refusal{"hidden_act", "7", "bad_config"}, Refusal{"layer_types", "[1]", "bad_config"},
                    Refusal{"hidden_size", "", "bad_config"}, Refusal{"hidden_size", "0", "bad_config"},
                    Refusal{"hidden_size", "-576", "bad_config"}, Refusal{"hidden_size", "576.5", "bad_config"},
                    Refusal{"hidden_size", R"("576")", "bad_config"}, Refusal{"hidden_size", "575", "bad_config"},
                    Refusal{"num_hidden_layers", "99999999999999999999", "bad_config"},
                    Refusal{"vocab_size", "9000000000", "bad_config"},
                    Refusal{"num_key_value_heads", "4", "bad_config"}, Refusal{"head_dim", "63", "bad_config"},
                    Refusal{"rms_norm_eps", "0", "bad_config"}, Refusal{"rope_theta", R"("big")", "bad_config"},
                    Refusal{"rope_scaling", "[[[]]]", "bad_config"},
                    Refusal{"sliding_window", R"("all")", "bad_config"},
                    Refusal{"rope_parameters", R"({"rope_theta": 500000.0})", "bad_config"},
                    Refusal{"tie_word_embeddings", "1", "bad_config"},
                    Refusal{"architectures", R"(["LlamaForCausalLM", "Qwen3ForCausalLM"])", "bad_config"}),
    NameOfCase<Refusal>);

constexpr char kLlama3Rope[] = R"({"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"})";

TEST(ModelConfigTest, Llama3sPositionsAreReadInBothSpellingsAndAreAnotherModel) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Result<ModelConfig> model = ParseModelConfig(With(kSmolLm2, key, kLlama3Rope));

    ASSERT_TRUE(model.ok()) << model.status().ToString();
    EXPECT_EQ(model->rope_stretch, (RopeStretch{32, 1, 4, 8192}));
    EXPECT_TRUE(CheckDecodable(*model).ok());
    EXPECT_NE(model->Description(), ParseModelConfig(kSmolLm2)->Description());
  }
}

TEST(ModelConfigTest, Llama3sPositionsNeedEachOfTheirNumbers) {
  for (const char* key : {"factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings"}) {
    const Status status = ParseModelConfig(With(kSmolLm2, "rope_scaling", With(kLlama3Rope, key, "").c_str())).status();

    EXPECT_EQ(status.reason(), "bad_config");
    EXPECT_NE(status.message().find(key), std::string::npos) << status.message();
  }
  EXPECT_EQ(ParseModelConfig(With(kSmolLm2, "rope_scaling", With(kLlama3Rope, "high_freq_factor", "1").c_str()))
                .status()
                .reason(),
            "bad_config");
}

TEST(ModelConfigTest, AWindowThatHoldsEveryPositionChangesNothing) {
  for (const char* window : {"8192", "32768"}) {
    const Result<ModelConfig> model = ParseModelConfig(With(kSmolLm2, "sliding_window", window));

    ASSERT_TRUE(model.ok()) << model.status().ToString();
    EXPECT_TRUE(CheckDecodable(*model).ok());
  }
}

TEST(ModelConfigTest, AMistralThatLeavesTheWindowOutHasTheUsualOneAndNullIsNone) {
  const std::string mistral = With(kSmolLm2, "architectures", R"(["MistralForCausalLM"])");

  EXPECT_EQ(CheckDecodable(*ParseModelConfig(mistral)).reason(), "unsupported_sliding_window");
  EXPECT_TRUE(CheckDecodable(*ParseModelConfig(With(mistral, "sliding_window", "null"))).ok());
  EXPECT_TRUE(CheckDecodable(*ParseModelConfig(With(mistral, "max_position_embeddings", "4096"))).ok());
}

TEST(ModelConfigTest, ModelsWithBiasesAreDecoded) {
  for (const auto& [key, value] : {std::pair("attention_bias", "true"), std::pair("mlp_bias", "true"),
                                   std::pair("architectures", R"(["Qwen2ForCausalLM"])")}) {
    EXPECT_TRUE(CheckDecodable(*ParseModelConfig(With(kSmolLm2, key, value))).ok()) << key;
  }
}

TEST(ModelConfigTest, TheMessageForAnUnknownArchitectureListsWhatIsSupportedNearestFirst) {
  const Status status = ParseModelConfig(With(kSmolLm2, "architectures", R"(["Qwen4ForCausalLM"])")).status();

  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("got Qwen4ForCausalLM, supported: Qwen2ForCausalLM, Qwen3ForCausalLM, "),
            std::string::npos)
      << status.message();
  for (const Architecture* architecture : Architectures()) {
    EXPECT_NE(status.message().find(architecture->name), std::string::npos) << architecture->name;
  }
}

TEST(ModelConfigTest, AQwen3ConfigWithoutHeadDimIsUnclearAndRefused) {
  EXPECT_EQ(ParseModelConfig(With(kQwen3, "head_dim", "")).status().reason(), "bad_config");
}

TEST(ModelConfigTest, ASettingThatIsNoWordIsRefused) {
  const std::string long_text(1000, 'a');

  const Status status = ParseModelConfig(With(kSmolLm2, "hidden_act", '"' + long_text + '"')).status();

  EXPECT_EQ(status.reason(), "bad_config");
  EXPECT_LT(status.message().size(), 200U);
}

TEST(ModelConfigTest, TextThatIsNoJsonObjectIsRefused) {
  for (const char* text : {"", "{", "[]", "null", "\xff", "{\"architectures\": \xff}"}) {
    EXPECT_EQ(ParseModelConfig(text).status().reason(), "bad_config") << text;
  }
  const std::string deep = "{\"architectures\": " + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_EQ(ParseModelConfig(deep).status().reason(), "bad_config");
}

TEST(ModelConfigTest, DescriptionsOfModelsThatDifferDiffer) {
  const Result<ModelConfig> model = ParseModelConfig(kSmolLm2);
  ModelConfig other = *model;
  other.rope_theta = 500000;

  EXPECT_NE(model->Description(), other.Description());
  EXPECT_EQ(model->Description(), ParseModelConfig(kSmolLm2)->Description());
}

// C-077: what the top level leaves open, the decoder's own part of the config says.
TEST(ModelConfigTest, ADecoderBesideAnImageTowerIsReadFromItsOwnPart) {
  const std::string text =
      With(With(With(kQwen3, "sliding_window", ""), "tie_word_embeddings", "false"), "architectures", "");
  const std::string nested =
      R"({"architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {"hidden_size": 1},
                               "text_config": )" +
      text + "}";

  const Result<ModelConfig> model = ParseModelConfig(nested);

  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_EQ(model->hidden, 1024);
  EXPECT_FALSE(model->tied_head);
  EXPECT_TRUE(ParseModelConfig(With(nested, "tie_word_embeddings", ""))->tied_head);
}

}  // namespace
}  // namespace bascule
