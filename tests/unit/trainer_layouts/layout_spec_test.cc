#include "trainer_side/layouts/layout_spec.h"

#include <gtest/gtest.h>

#include "bridge/plan/planner.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

ModelConfig TinyModel() {
  return {.architecture = "LlamaForCausalLM",
          .layers = 4,
          .hidden = 16,
          .query_heads = 4,
          .kv_heads = 2,
          .head_size = 4,
          .ffn = 24,
          .vocabulary = 130};
}

std::string ReasonOf(std::string_view spec, int ranks, const ModelConfig* config) {
  const auto layout = MakeTrainerLayout(spec, ranks, LogicalTensors(TinyModel(), DType::kBf16), config);
  return layout.ok() ? "" : std::string(layout.status().reason());
}

TEST(LayoutSpecTest, EverySpecOfTheManualCanBePublishedToAnEngine) {
  const ModelConfig config = TinyModel();
  const auto engine = MakeEngineLayout(config, DType::kBf16, {.tensor = 2});
  const std::pair<const char*, int> specs[] = {{"plain", 3},
                                               {"fsdp", 3},
                                               {"mesh:4", 4},
                                               {"mesh:2x2", 4},
                                               {"mesh:2x2x2", 8},
                                               {"megatron:tp=2", 4},
                                               {"megatron:tp=2,pp=2,ep=1,etp=1,vpp=2,vocab=64", 8},
                                               {"megatron:pp=2,first=1,last=3", 2},
                                               {"megatron", 2}};
  for (const auto& [spec, ranks] : specs) {
    SCOPED_TRACE(spec);

    const auto layout = MakeTrainerLayout(spec, ranks, LogicalTensors(config, DType::kF32), &config);

    ASSERT_TRUE(layout.ok()) << layout.status().ToString();
    EXPECT_EQ(std::ssize(layout->ranks), ranks);
    const auto plan = MakePlan(*layout, engine->layout, {.bucket_bytes = 4096, .ignore = {}});
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  }
}

TEST(LayoutSpecTest, WhatIsNoSpecIsRefusedByName) {
  const ModelConfig config = TinyModel();
  for (const char* spec : {"",
                           "fsdp:2",
                           "mesh",
                           "mesh:",
                           "mesh:2x",
                           "mesh:2x3",
                           "mesh:0x4",
                           "mesh:-1x4",
                           "mesh:1x1x2x2",
                           "megatron:tp",
                           "megatron:tp=x",
                           "megatron:tp=0",
                           "megatron:cp=2",
                           "megatron:tp=2,",
                           "megatron:tp=3",
                           "megatron:pp=3",
                           "megatron:ep=2",
                           "megatron:vpp=2",
                           "ddp",
                           "mesh:99999999999x4",
                           "mesh:65536x65536x65536"}) {
    EXPECT_EQ(ReasonOf(spec, 4, &config), "bad_trainer_layout") << spec;
  }
  EXPECT_EQ(ReasonOf("plain", 0, &config), "bad_trainer_layout");
  EXPECT_EQ(ReasonOf("megatron:tp=2", 2, nullptr), "config_missing");
}

}  // namespace
}  // namespace bascule
