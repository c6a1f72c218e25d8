// Quantised checkpoints in every published form against an oracle in Python, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "bridge/plan/planner.h"
#include "checkpoint/checkpoint.h"
#include "kernels/pack.h"
#include "model/engine_layout.h"
#include "model/family_check.h"
#include "model/model_table.h"
#include "tests/support/run_python.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

struct Mapped {
  std::unique_ptr<Checkpoint> checkpoint;
  ModelConfig config;
  Layout sender;  // in canonical names
  std::vector<std::string> ignore;
};

Result<Mapped> Map(const std::string& path) {
  Mapped mapped;
  ASSIGN_OR_RETURN(mapped.checkpoint, Checkpoint::Open(path));
  ASSIGN_OR_RETURN(mapped.config, ParseModelConfig(mapped.checkpoint->config_json()));
  ASSIGN_OR_RETURN(mapped.sender, CanonicalSenderLayout(mapped.config, mapped.checkpoint->layout(), &mapped.ignore));
  return mapped;
}

Result<EngineLayout> EngineOf(const Mapped& mapped, int tensor_parallel) {
  std::map<std::string, DType, std::less<>> stored;
  for (const TensorSpec& tensor : mapped.sender.tensors) stored[tensor.name] = tensor.dtype;
  return MakeEngineLayout(mapped.config,
                          [&stored](std::string_view name) {
                            const auto found = stored.find(name);
                            return found == stored.end() ? DType::kBf16 : found->second;
                          },
                          {.tensor = tensor_parallel});
}

Result<Plan> PlanOf(const Mapped& mapped, const Layout& engine) {
  return MakePlan(mapped.sender, engine, {.bucket_bytes = 1 << 16, .ignore = mapped.ignore});
}

using Memory = std::vector<std::vector<std::byte>>;

// Carries out a plan of one sender into the memory of one engine rank.
Memory CarryOut(const Plan& plan, const Mapped& mapped, const RankLayout& rank, int number) {
  Memory memory;
  for (const LocalTensor& tensor : rank.tensors) memory.emplace_back(static_cast<std::size_t>(tensor.Bytes()));
  for (const Bucket& bucket : plan.buckets) {
    if (plan.routes[static_cast<std::size_t>(bucket.route)].engine_rank != number) continue;
    for (const Slice& slice : bucket.slices) {
      const LocalTensor& from = mapped.sender.ranks[0].tensors[static_cast<std::size_t>(slice.sender_tensor)];
      const LocalTensor& to = rank.tensors[static_cast<std::size_t>(slice.engine_tensor)];
      CopyBoxOnHost(ShapeOf(slice.engine_box), ItemBytes(to.dtype), mapped.checkpoint->Base(0, slice.sender_tensor),
                    PlaceIn(slice.sender_box, from.shape), memory[static_cast<std::size_t>(slice.engine_tensor)].data(),
                    PlaceIn(slice.engine_box, to.shape));
    }
  }
  return memory;
}

void ExpectRankEquals(const RankLayout& rank, const Memory& memory, const Checkpoint& expected) {
  ASSERT_EQ(rank.tensors.size(), expected.tensors().size());
  for (std::size_t t = 0; t < rank.tensors.size(); ++t) {
    const LocalTensor& tensor = rank.tensors[t];
    const auto found = std::ranges::find(expected.tensors(), tensor.name, &TensorSpec::name);
    ASSERT_NE(found, expected.tensors().end()) << tensor.name;
    EXPECT_EQ(tensor.dtype, found->dtype) << tensor.name;
    EXPECT_EQ(tensor.shape, found->shape) << tensor.name << tensor.shape.ToString() << found->shape.ToString();
    const auto data = expected.Data(static_cast<int>(found - expected.tensors().begin()));
    EXPECT_TRUE(std::ranges::equal(memory[t], data)) << tensor.name;
  }
}

// The kind of checkpoint, what it is made of, and tensor-parallel ranks.
using Case = std::tuple<const char*, const char*, int>;

class QuantizedMappingTest : public testing::TestWithParam<Case> {};

TEST_P(QuantizedMappingTest, EveryRanksBytesEqualAnIndependentCutOfTheCheckpoint) {
  const auto [kind, tensors, tensor_parallel] = GetParam();
  const TempDirectory dir;
  RunPython("quant_fixtures.py", {kind, dir.File("checkpoint"), "--tensors", tensors});
  RunPython("quant_oracle.py", {dir.File("checkpoint"), dir.File("expected"), "--tp", std::to_string(tensor_parallel)});
  const Result<Mapped> mapped = Map(dir.File("checkpoint"));
  ASSERT_TRUE(mapped.ok()) << mapped.status().ToString();
  const Result<EngineLayout> engine = EngineOf(*mapped, tensor_parallel);
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();

  const Result<Plan> plan = PlanOf(*mapped, engine->layout);

  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  for (int rank = 0; rank < tensor_parallel; ++rank) {
    SCOPED_TRACE(rank);
    const RankLayout& layout = engine->layout.ranks[static_cast<std::size_t>(rank)];
    const auto expected = Checkpoint::Open(dir.File(fmt::format("expected/rank-{}.safetensors", rank)));
    ASSERT_TRUE(expected.ok()) << expected.status().ToString();
    ExpectRankEquals(layout, CarryOut(*plan, *mapped, layout, rank), **expected);
  }
}

std::string NameOf(const testing::TestParamInfo<Case>& test) {
  const auto& [kind, tensors, tensor_parallel] = test.param;
  std::string name = fmt::format("{}_{}_tp{}", kind, tensors, tensor_parallel);
  std::ranges::replace(name, '-', '_');
  return name;
}

constexpr auto kKinds = {"fp8-block",      "fp8-tensor",   "fp8-tensor-static", "ct-fp8-tensor",
                         "ct-fp8-channel", "ct-fp8-block", "ct-int8-channel",   "ct-int8-zero",
                         "ct-int4-group",  "ct-int4-zero", "ct-int8-packed"};

INSTANTIATE_TEST_SUITE_P(Dense, QuantizedMappingTest,
                         testing::Combine(testing::ValuesIn(kKinds), testing::Values("dense"),
                                          testing::Values(1, 2, 4)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Experts, QuantizedMappingTest,
                         testing::Combine(testing::ValuesIn(kKinds), testing::Values("moe"), testing::Values(1, 2)),
                         NameOf);

// What a checkpoint of `config` stores, each tensor in the first type that it may have.
Layout StoredOf(const ModelConfig& config) {
  const Result<ModelTable> table = MakeModelTable(config);
  CHECK(table.ok());
  std::vector<TensorSpec> specs;
  for (const LogicalTensor& tensor : table->logical) specs.push_back({tensor.name, tensor.dtypes[0], tensor.shape});
  return PlainLayout(std::move(specs));
}

ModelConfig SmallConfig(Quantization quantization) {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.layers = 2;
  config.hidden = 256;
  config.query_heads = 4;
  config.kv_heads = 4;
  config.head_size = 64;
  config.ffn = 1280;
  config.vocabulary = 320;
  config.quantization = std::move(quantization);
  return config;
}

Status MapStatus(const std::vector<std::string>& fixture, const TempDirectory& dir) {
  std::vector<std::string> arguments = fixture;
  arguments.insert(arguments.begin() + 1, dir.File("checkpoint"));
  RunPython("quant_fixtures.py", arguments);
  return Map(dir.File("checkpoint")).status();
}

TEST(QuantizedFamilyTest, AFamilyWithAMemberMissingIsRefusedAndNamesTheFamilyAndTheMember) {
  const std::string module = "model.layers.1.mlp.down_proj";
  const std::pair<const char*, std::vector<const char*>> members[] = {
      {"fp8-block", {"weight", "weight_scale_inv"}},
      {"fp8-tensor-static", {"weight", "weight_scale", "input_scale"}},
      {"ct-int8-zero", {"weight", "weight_scale", "weight_zero_point"}},
      {"ct-int4-zero", {"weight_packed", "weight_scale", "weight_zero_point", "weight_shape"}},
  };
  for (const auto& [kind, endings] : members) {
    for (const char* ending : endings) {
      const TempDirectory dir;
      const std::string dropped = fmt::format("{}.{}", module, ending);

      const Status status = MapStatus({kind, "--drop", dropped}, dir);

      EXPECT_EQ(status.reason(), "family_incomplete") << kind << status.ToString();
      EXPECT_TRUE(status.message().starts_with(module + " (")) << status.ToString();
      EXPECT_NE(status.message().find(dropped + " is missing"), std::string::npos) << status.ToString();
    }
  }
}

TEST(QuantizedFamilyTest, KvScalesThatAreStatedAndMissingAreMissingAndNotMadeUp) {
  const TempDirectory dir;
  RunPython("quant_fixtures.py",
            {"ct-fp8-tensor", dir.File("checkpoint"), "--drop", "model.layers.0.self_attn.v_scale"});
  const Result<Mapped> mapped = Map(dir.File("checkpoint"));
  ASSERT_TRUE(mapped.ok()) << mapped.status().ToString();

  const Status status = PlanOf(*mapped, EngineOf(*mapped, 1)->layout).status();

  EXPECT_EQ(status.reason(), "tensor_missing");
  EXPECT_NE(status.message().find("model.layers.0.self_attn.v_scale"), std::string::npos) << status.ToString();
}

TEST(QuantizedFamilyTest, KvScalesUnderOtherProgramsNamesAreTheSameScales) {
  ModelConfig config = SmallConfig(Fp8BlockQuantization());
  config.quantization.kv_scales = true;
  for (const char* other : {"self_attn.attn.k_scale", "self_attn.k_proj.k_scale", "self_attn.k_proj.output_scale"}) {
    Layout stored = StoredOf(config);
    const auto scale = std::ranges::find(stored.tensors, "model.layers.1.self_attn.k_scale", &TensorSpec::name);
    ASSERT_NE(scale, stored.tensors.end());
    scale->name = fmt::format("model.layers.1.{}", other);
    scale->shape = {};
    stored = PlainLayout(stored.tensors);
    std::vector<std::string> ignore;

    const Result<Layout> canonical = CanonicalSenderLayout(config, stored, &ignore);

    ASSERT_TRUE(canonical.ok()) << canonical.status().ToString();
    EXPECT_TRUE(
        std::ranges::count(canonical->tensors, TensorSpec{"model.layers.1.self_attn.k_scale", DType::kBf16, {1}}))
        << other;
  }
}

// C-089.
TEST(QuantizedFamilyTest, ScalesMayBeFloatsOfThreeKindsAndAreKeptAsTheyAre) {
  for (const auto& [name, dtype] : {std::pair("F32", DType::kF32), {"BF16", DType::kBf16}, {"F16", DType::kF16}}) {
    const TempDirectory dir;
    RunPython("quant_fixtures.py", {"fp8-block", dir.File("checkpoint"), "--scale-dtype", name});

    const Result<Mapped> mapped = Map(dir.File("checkpoint"));

    ASSERT_TRUE(mapped.ok()) << mapped.status().ToString();
    const Result<EngineLayout> engine = EngineOf(*mapped, 2);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    for (const LocalTensor& tensor : engine->layout.ranks[1].tensors) {
      if (tensor.name.ends_with("weight_scale_inv")) {
        EXPECT_EQ(tensor.dtype, dtype);
      }
    }
    EXPECT_TRUE(PlanOf(*mapped, engine->layout).ok());
  }
}

// C-089.
TEST(QuantizedFamilyTest, ScalesThatAreExponentsAloneAreRefusedWithWhatTheyMayBe) {
  const TempDirectory dir;

  const Status status = MapStatus({"fp8-block", "--scale-dtype", "U8"}, dir);

  EXPECT_EQ(status.reason(), "family_dtype");
  EXPECT_NE(status.message().find("is U8, may be F32, BF16, F16"), std::string::npos) << status.ToString();
}

Quantization Fp8BlockWithout(std::vector<std::string> ignored) {
  Quantization quantization = Fp8BlockQuantization();
  quantization.ignored = std::move(ignored);
  return quantization;
}

Status StatusOf(const ModelConfig& config, const Layout& stored) {
  std::vector<std::string> ignore;
  return CanonicalSenderLayout(config, stored, &ignore).status();
}

// C-086.
TEST(QuantizedFamilyTest, ModulesThatAreLeftAlonePlainAndTheirScalesAndFp8WeightsAreRefused) {
  const ModelConfig quantized = SmallConfig(Fp8BlockQuantization());
  const ModelConfig partly = SmallConfig(Fp8BlockWithout({"model.layers.1.mlp"}));
  Layout with_scale = StoredOf(partly);
  with_scale.tensors.push_back({"model.layers.1.mlp.up_proj.weight_scale_inv", DType::kF32, {10, 2}});
  Layout with_fp8 = StoredOf(partly);
  const auto weight = std::ranges::find(with_fp8.tensors, "model.layers.1.mlp.up_proj.weight", &TensorSpec::name);
  ASSERT_NE(weight, with_fp8.tensors.end());
  weight->dtype = DType::kF8E4M3;

  const Status unknown = StatusOf(partly, with_scale);
  const Status dtype = StatusOf(partly, with_fp8);

  EXPECT_TRUE(StatusOf(partly, StoredOf(partly)).ok());
  EXPECT_FALSE(StatusOf(partly, StoredOf(quantized)).ok());
  EXPECT_FALSE(StatusOf(quantized, StoredOf(partly)).ok());
  for (const Status& status : {unknown, dtype}) {
    EXPECT_NE(status.message().find("ignored by \"model.layers.1.mlp\""), std::string::npos) << status.ToString();
  }
  EXPECT_EQ(unknown.reason(), "unknown_scale");
  EXPECT_EQ(dtype.reason(), "family_dtype");
}

// C-086.
TEST(QuantizedFamilyTest, AFusedTensorWithOnlySomePartsLeftAloneIsRefusedAndANameOfTheFusionMeansAllParts) {
  const auto table_status = [](std::vector<std::string> ignored) {
    return MakeModelTable(SmallConfig(Fp8BlockWithout(std::move(ignored)))).status();
  };

  const Status part = table_status({"model.layers.0.self_attn.k_proj"});

  EXPECT_EQ(part.reason(), "partly_quantized");
  EXPECT_NE(part.message().find("model.layers.0.self_attn.qkv_proj"), std::string::npos) << part.ToString();
  EXPECT_NE(part.message().find("k_proj is plain, ignored by"), std::string::npos) << part.ToString();
  EXPECT_TRUE(table_status({"model.layers.0.self_attn.qkv_proj"}).ok());
  EXPECT_TRUE(table_status({"gate_up_proj"}).ok());
  EXPECT_EQ(table_status({"gate_proj"}).reason(), "partly_quantized");
}

TEST(QuantizedFamilyTest, PatternsThatMeanNothingInTheModelAreFound) {
  const ModelConfig config = SmallConfig(
      Fp8BlockWithout({"lm_head", "linear_attn.in_proj_qkv", "gate_up_proj", "re:.*router", "input_layernorm"}));
  const Result<ModelTable> table = MakeModelTable(config);
  ASSERT_TRUE(table.ok()) << table.status().ToString();

  EXPECT_EQ(UnusedPatterns(config, *table), (std::vector<std::string>{"linear_attn.in_proj_qkv", "re:.*router"}));
}

TEST(QuantizedFamilyTest, ScalesOfACheckpointThatStatesNoneAreRefused) {
  const ModelConfig plain = SmallConfig({});
  Layout with_scale = StoredOf(plain);
  with_scale.tensors.push_back({"model.layers.0.mlp.up_proj.weight_scale", DType::kF32, {1}});
  Layout with_kv_scale = StoredOf(plain);
  with_kv_scale.tensors.push_back({"model.layers.0.self_attn.kv_scale", DType::kF32, {1}});

  EXPECT_EQ(StatusOf(plain, with_scale).reason(), "unknown_scale");
  const Status status = StatusOf(plain, with_kv_scale);
  EXPECT_EQ(status.reason(), "unknown_scale");
  EXPECT_NE(status.message().find("kv_cache_scheme"), std::string::npos) << status.ToString();
}

// C-088.
TEST(QuantizedSliceTest, ACutThroughABlockIsRefusedWithTheNumbersAndTheSizesThatCutNone) {
  const ModelConfig config = SmallConfig(Fp8BlockWithout({"self_attn"}));
  const auto layout = [&](const ModelConfig& model, int tensor_parallel) {
    return MakeEngineLayout(model, DType::kBf16, {.tensor = tensor_parallel}).status();
  };
  ModelConfig five = config;
  five.query_heads = five.kv_heads = 5;

  EXPECT_TRUE(layout(config, 1).ok());
  EXPECT_TRUE(layout(config, 2).ok());
  EXPECT_TRUE(layout(five, 5).ok()) << layout(five, 5).ToString();
  const Status status = layout(config, 4);
  EXPECT_EQ(status.reason(), "quantization_block_cut");
  EXPECT_EQ(
      status.message(),
      "model.layers.0.mlp.gate_proj.weight_scale_inv: rows [0, 320) of 1280 are rank 0's of 4, and cut a block of "
      "128; tensor-parallel sizes that cut none: 1, 2, 5, 10");
}

TEST(QuantizedSliceTest, ACutThroughAGroupOrAPackedWordOfColumnsIsRefused) {
  const auto refusal = [](WeightScheme scheme) {
    ModelConfig config =
        SmallConfig({.method = "compressed-tensors", .groups = {{.targets = {"Linear"}, .scheme = std::move(scheme)}}});
    config.ffn = 36;
    return MakeEngineLayout(config, DType::kBf16, {.tensor = 2}).status();
  };

  const Status word = refusal({.storage = WeightStorage::kPacked, .bits = 4, .group = {1, 0}});
  const Status group = refusal({.storage = WeightStorage::kInt8, .bits = 8, .group = {1, 4}});

  EXPECT_EQ(word.reason(), "quantization_block_cut");
  EXPECT_NE(word.message().find("down_proj.weight_packed: columns [0, 18) of 36"), std::string::npos)
      << word.ToString();
  EXPECT_EQ(group.reason(), "quantization_block_cut");
  EXPECT_NE(group.message().find("down_proj.weight_scale: columns [0, 18) of 36"), std::string::npos)
      << group.ToString();
}

// C-088.
TEST(QuantizedSliceTest, FusedPartsWhoseEdgesAreNotWholeBlocksHaveScaleRowsOfTheirOwn) {
  ModelConfig config = SmallConfig(Fp8BlockQuantization());
  config.query_heads = 5;
  config.kv_heads = 1;

  const Result<EngineLayout> engine = MakeEngineLayout(config, DType::kBf16);

  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  const auto& tensors = engine->layout.ranks[0].tensors;
  const auto scales =
      std::ranges::find(tensors, "model.layers.0.self_attn.qkv_proj.weight_scale_inv", &LocalTensor::name);
  ASSERT_NE(scales, tensors.end());
  EXPECT_EQ(scales->shape, (Dims{3 + 1 + 1, 2}));  // q has 320 rows, k and v 64 each
  EXPECT_EQ(MakeEngineLayout(config, DType::kBf16, {.tensor = 5}).status().reason(), "quantization_block_cut");
}

TEST(QuantizedSliceTest, AKvHeadThatIsHalfABlockIsNotGivenToARankAlone) {
  ModelConfig config = SmallConfig(Fp8BlockWithout({"mlp", "o_proj"}));
  config.query_heads = 8;
  config.kv_heads = 2;

  const Status status = MakeEngineLayout(config, DType::kBf16, {.tensor = 4}).status();

  EXPECT_EQ(status.reason(), "quantization_block_cut");
  EXPECT_NE(status.message().find("k_proj.weight_scale_inv: rows [0, 64) of 128"), std::string::npos)
      << status.ToString();
}

}  // namespace
}  // namespace bascule
