// The tables beside published models: their config.json (what decides shapes), and how many parameters they are
// published to have.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>

#include "model/engine_layout.h"
#include "tests/support/case_name.h"

namespace bascule {
namespace {

struct Published {
  const char* name;
  const char* config;
  std::int64_t parameters;
  int tensor_ranks;  // that vendors serve it on
  friend std::ostream& operator<<(std::ostream& out, const Published& model) { return out << model.name; }
};

const Published kPublished[] = {
    {"Llama-3.1-8B",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu", "hidden_size": 4096,
     "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "num_attention_heads": 32,
     "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
     "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
     "rope_theta": 500000.0, "tie_word_embeddings": false, "vocab_size": 128256})",
     8'030'261'248, 8},
    {"SmolLM2-135M",
     R"({"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536,
     "max_position_embeddings": 8192, "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
     "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 100000, "tie_word_embeddings": true,
     "vocab_size": 49152})",
     134'515'008, 3},
    {"Mistral-7B-v0.3",
     R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 4096,
     "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
     "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
     "tie_word_embeddings": false, "vocab_size": 32768})",
     7'248'023'552, 8},
    {"Mixtral-8x7B-v0.1",
     R"({"architectures": ["MixtralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
     "max_position_embeddings": 32768, "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
     "num_key_value_heads": 8, "num_local_experts": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
     "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32000})",
     46'702'792'704, 8},
    {"Qwen2.5-0.5B",
     R"({"architectures": ["Qwen2ForCausalLM"], "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
     "max_position_embeddings": 32768, "max_window_layers": 24, "num_attention_heads": 14, "num_hidden_layers": 24,
     "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
     "tie_word_embeddings": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})",
     494'032'768, 2},
    {"Qwen3-0.6B",
     R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128, "hidden_act": "silu",
     "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16,
     "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
     "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
     "vocab_size": 151936})",
     596'049'920, 8},
    {"Qwen3-30B-A3B",
     R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128,
     "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
     "mlp_only_layers": [], "moe_intermediate_size": 768, "num_attention_heads": 32, "num_experts": 128,
     "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
     "rope_scaling": null, "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false,
     "use_sliding_window": false, "vocab_size": 151936})",
     30'532'122'624, 8},
    {"Phi-3-mini-4k",
     R"({"architectures": ["Phi3ForCausalLM"], "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192,
     "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
     "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
     "sliding_window": 2047, "tie_word_embeddings": false, "vocab_size": 32064})",
     3'821'079'552, 8},
    {"gemma-2-2b",
     R"({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attn_logit_softcapping": 50.0,
     "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
     "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "intermediate_size": 9216,
     "max_position_embeddings": 8192, "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
     "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
     "vocab_size": 256000})",
     2'614'341'888, 4},
    {"gemma-3-1b",
     R"({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "head_dim": 256,
     "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
     "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
     "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null,
     "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 262144})",
     999'885'952, 4},
    {"DeepSeek-V2-Lite",
     R"({"architectures": ["DeepseekV2ForCausalLM"], "attention_bias": false, "first_k_dense_replace": 1,
     "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
     "max_position_embeddings": 163840, "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_routed_experts": 64,
     "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
     "num_key_value_heads": 16, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
     "rms_norm_eps": 1e-06, "rope_scaling": {"factor": 40, "type": "yarn"}, "rope_theta": 10000,
     "tie_word_embeddings": false, "topk_method": "greedy", "v_head_dim": 128, "vocab_size": 102400})",
     15'706'484'224, 8},
    {"DeepSeek-V3, without its draft layer",
     R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "first_k_dense_replace": 3,
     "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
     "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_routed_experts": 256,
     "n_shared_experts": 1, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
     "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
     "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_scaling": {"factor": 40, "type": "yarn"},
     "rope_theta": 10000, "tie_word_embeddings": false, "topk_method": "noaux_tc", "v_head_dim": 128,
     "vocab_size": 129280})",
     671'026'419'200, 8}};

class PublishedModelsTest : public testing::TestWithParam<Published> {};

TEST_P(PublishedModelsTest, HaveAsManyParametersAsTheyArePublishedToHaveAndDivide) {
  const Result<ModelConfig> config = ParseModelConfig(GetParam().config);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  std::int64_t parameters = 0;
  for (const TensorSpec& tensor : LogicalTensors(*config, DType::kBf16)) parameters += tensor.Elements();

  const Result<EngineLayout> engine = MakeEngineLayout(*config, DType::kBf16, {.tensor = GetParam().tensor_ranks});

  EXPECT_EQ(parameters, GetParam().parameters);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
}

INSTANTIATE_TEST_SUITE_P(Models, PublishedModelsTest, testing::ValuesIn(kPublished), NameOfCase<Published>);

// A config.json comes from anywhere: whatever is changed in one, it is read or refused, and what it sizes is what fits.
TEST(ConfigMutationTest, AChangedConfigIsReadOrRefusedAndLaysOutOrIsRefused) {
  int read = 0;
  int laid_out = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::string text = kPublished[random() % std::size(kPublished)].config;
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      const std::string_view characters = "0123456789-.e{}[]\",: ntf";
      const std::size_t at = random() % text.size();
      text.replace(at, random() % 3, 1, characters[random() % characters.size()]);
    }
    const Result<ModelConfig> config = ParseModelConfig(text);
    if (!config.ok()) {
      EXPECT_FALSE(config.status().reason().empty());
      continue;
    }
    ++read;
    if (config->layers * std::max<std::int64_t>(config->experts.count, 1) > 512) continue;
    const Result<EngineLayout> engine = MakeEngineLayout(*config, DType::kBf16, {.tensor = 2});
    if (!engine.ok()) continue;
    ++laid_out;
    EXPECT_EQ(engine->layout.ranks.size(), 2U);
  }
  EXPECT_GT(read, 150);
  EXPECT_GT(laid_out, 75);
}

}  // namespace
}  // namespace bascule
