#include "model/module_patterns.h"

#include <gtest/gtest.h>

namespace bascule {
namespace {

bool Means(const std::string& pattern, std::string_view module) {
  const Result<ModulePatterns> patterns = ModulePatterns::Make({pattern});
  EXPECT_TRUE(patterns.ok()) << patterns.status().ToString();
  return patterns.ok() && patterns->Find(module) != nullptr;
}

// C-086.
TEST(ModulePatternsTest, PlainPatternsMatchWholeComponentsAndExpressionsFromTheBeginning) {
  const struct {
    const char* pattern;
    const char* module;
    bool means;
  } table[] = {
      {"mlp.gate", "model.layers.0.mlp.gate", true},
      {"mlp.gate", "model.layers.0.mlp.gate_proj", false},
      {"mlp.gate", "model.layers.0.mlp.gate_up_proj", false},
      {"gate_up_proj", "model.layers.0.mlp.gate_up_proj", true},
      {"gate_up_proj", "model.layers.0.mlp.shared_gate_up_proj", false},
      {"linear_attn.in_proj_qkv", "model.layers.0.self_attn.q_proj", false},
      {"model.layers.1", "model.layers.1.mlp.up_proj", true},
      {"model.layers.1", "model.layers.11.mlp.up_proj", false},
      {"layers.1.mlp", "model.layers.1.mlp.up_proj", true},
      {"model.language_model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.q_proj", true},
      {"base_model.model.model.layers.0.mlp", "model.layers.0.mlp.down_proj", true},
      {"module._orig_mod.lm_head", "lm_head", true},
      {"lm_head", "lm_head", true},
      {"lm_head", "model.lm_head_norm", false},
      {"re:.*router", "model.layers.3.mlp.router.gate", true},
      {"re:router", "model.layers.3.mlp.router", false},
      {"re:.*mlp\\.gate$", "model.layers.3.mlp.gate", true},
      {"re:.*mlp\\.gate$", "model.layers.3.mlp.gate_proj", false},
      {"re:model\\.layers\\.(0|2)\\.", "model.layers.2.mlp.up_proj", true},
      {"re:model\\.layers\\.(0|2)\\.", "model.layers.1.mlp.up_proj", false},
      {"re:.*\\.experts\\.\\d+\\.w1", "model.layers.0.experts.17.w1", true},
  };
  for (const auto& row : table) {
    EXPECT_EQ(Means(row.pattern, row.module), row.means) << row.pattern << " " << row.module;
  }
}

TEST(ModulePatternsTest, ThePatternThatMatchedIsTheOneThatWasGiven) {
  const Result<ModulePatterns> patterns = ModulePatterns::Make({"module.mlp.gate", "re:.*norm"});
  ASSERT_TRUE(patterns.ok());

  EXPECT_EQ(*patterns->Find("model.layers.0.mlp.gate"), "module.mlp.gate");
  EXPECT_EQ(*patterns->Find("model.norm"), "re:.*norm");
  EXPECT_EQ(patterns->Find("model.layers.0.mlp.up_proj"), nullptr);
}

// C-086.
TEST(ModulePatternsTest, PatternsThatMeanNoModuleOfTheModelAreNamed) {
  const Result<ModulePatterns> patterns =
      ModulePatterns::Make({"lm_head", "visual.blocks", "re:.*mlp", "re:vision", "layers.0", "mlp"});
  ASSERT_TRUE(patterns.ok());

  const std::vector<std::string> unused = patterns->Unused({"model.layers.0.mlp.up_proj", "lm_head"});

  EXPECT_EQ(unused, (std::vector<std::string>{"re:vision", "visual.blocks"}));
}

TEST(ModulePatternsTest, EmptyAndBrokenPatternsAreRefusedByName) {
  for (const char* pattern : {"", "module", "re:(", "re:[a", "re:a{4000000}"}) {
    const Status status = ModulePatterns::Make({"lm_head", pattern}).status();

    EXPECT_EQ(status.reason(), "bad_config") << pattern;
    EXPECT_NE(status.message().find(fmt::format("\"{}\"", pattern)), std::string::npos) << status.ToString();
  }
}

TEST(ModulePatternsTest, AnExpressionThatBacktracksForEverElsewhereEndsHere) {
  const std::string name = std::string(60, 'a') + "!";

  EXPECT_FALSE(Means("re:(a*)*b", name));
  EXPECT_FALSE(Means("re:(a|aa)+$", name));
}

}  // namespace
}  // namespace bascule
