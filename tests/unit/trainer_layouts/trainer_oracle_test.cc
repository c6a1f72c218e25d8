// Trainer layouts beside independent Python: tests/support/python/trainer_shards.py writes what each trainer rank
// holds, as its framework publishes it, and shard_oracle.py what each engine rank has to hold. A plan over our layouts
// brings the one to the other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "bridge/plan/planner.h"
#include "checkpoint/checkpoint.h"
#include "model/engine_layout.h"
#include "tests/support/carry_out/carry_out.h"
#include "tests/support/run_python.h"
#include "tests/support/temp_directory.h"
#include "trainer_side/layouts/flat_parameter_layout.h"
#include "trainer_side/layouts/layout_spec.h"
#include "trainer_side/tensor_source.h"

namespace bascule {
namespace {

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words = {""};
  for (const char c : text) {
    if (c == ' ') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

class TrainerOracleTest : public testing::Test {
 protected:
  // A checkpoint of `kind`, and under "trainer" what the trainer ranks hold.
  void Prepare(const std::string& kind, int ranks, const std::string& framework) {
    RunPython("architectures.py", {kind, dir_.File("checkpoint")});
    std::vector<std::string> arguments = {dir_.File("checkpoint"), dir_.File("trainer")};
    for (const std::string& word : Words(framework)) arguments.push_back(word);
    RunPython("trainer_shards.py", arguments);
    checkpoint_ = *Checkpoint::Open(dir_.File("checkpoint"));
    Result<ModelConfig> config = ParseModelConfig(checkpoint_->config_json());
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    config_ = *config;
    std::unordered_map<std::string, DType> stored;
    for (const TensorSpec& tensor : checkpoint_->tensors()) stored[tensor.name] = tensor.dtype;
    tensors_ = LogicalTensors(config_, DType::kBf16);
    for (TensorSpec& tensor : tensors_) tensor.dtype = dtypes_[tensor.name] = stored.at(tensor.name);
    for (int r = 0; r < ranks; ++r) {
      auto held = Checkpoint::Open(dir_.File(fmt::format("trainer/rank-{}.safetensors", r)));
      ASSERT_TRUE(held.ok()) << held.status().ToString();
      held_.push_back(std::move(*held));
    }
  }

  // The trainer's memory under `layout`; a framework's tensor for each of the rank's, no more and no less.
  TensorSource SourceOf(const Layout& layout) {
    TensorSource source(static_cast<int>(layout.ranks.size()), layout.tensors);
    EXPECT_EQ(layout.ranks.size(), held_.size());
    for (std::size_t r = 0; r < layout.ranks.size(); ++r) {
      SCOPED_TRACE(fmt::format("trainer rank {}", r));
      const RankLayout& rank = layout.ranks[r];
      EXPECT_EQ(rank.tensors.size(), held_[r]->tensors().size());
      std::vector<const void*> addresses;
      for (const LocalTensor& local : rank.tensors) addresses.push_back(Find(r, local));
      EXPECT_TRUE(source.AddRank(static_cast<int>(r), rank, addresses).ok());
    }
    return source;
  }

  // Views of flat parameters lie in the framework's one tensor a unit.
  TensorSource SourceOf(const FlatLayout& flat, const std::vector<FlatUnit>& units) {
    TensorSource source(static_cast<int>(flat.views.size()), flat.layout.tensors);
    for (std::size_t r = 0; r < flat.views.size(); ++r) {
      EXPECT_EQ(held_[r]->tensors().size(), units.size());
      std::vector<const void*> addresses;
      for (std::size_t t = 0; t < flat.views[r].size(); ++t) {
        const FlatView view = flat.views[r][t];
        const auto unit = static_cast<std::size_t>(view.unit);
        const DType dtype = flat.layout.ranks[r].tensors[t].dtype;
        const std::byte* const shard =
            Find(r, {.name = units[unit].name, .dtype = dtype, .shape = {flat.shard_elements[unit]}});
        addresses.push_back(shard + view.offset * ItemBytes(dtype));
      }
      EXPECT_TRUE(source.AddRank(static_cast<int>(r), flat.layout.ranks[r], addresses).ok());
    }
    return source;
  }

  // Brings the trainer's weights to `tensor` engine ranks and compares all of their memory.
  void BringTo(const WeightSource& source, ParallelLayout parallel) {
    const std::string expected = dir_.File(parallel.expert_parallel ? "expected-ep" : "expected");
    std::vector<std::string> arguments = {dir_.File("checkpoint"), expected, "--tp", std::to_string(parallel.tensor)};
    if (parallel.expert_parallel) arguments.emplace_back("--expert-parallel");
    RunPython("shard_oracle.py", arguments);
    const auto engine = MakeEngineLayout(
        config_, [&](std::string_view name) { return dtypes_.at(std::string(name)); }, parallel);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    const Result<Plan> plan = MakePlan(source.layout(), engine->layout, {.bucket_bytes = 4096, .ignore = {}});
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();

    const CarriedOut result = CarryOut(*plan, source, engine->layout);

    for (int r = 0; r < parallel.tensor; ++r) {
      SCOPED_TRACE(fmt::format("engine rank {}", r));
      const auto file = Checkpoint::Open(fmt::format("{}/tp{}-rank-{}.safetensors", expected, parallel.tensor, r));
      ASSERT_TRUE(file.ok()) << file.status().ToString();
      const RankLayout& rank = engine->layout.ranks[static_cast<std::size_t>(r)];
      ASSERT_EQ(rank.tensors.size(), (*file)->tensors().size());
      for (std::size_t t = 0; t < rank.tensors.size(); ++t) {
        const std::span<const std::byte> want = DataOf(**file, rank.tensors[t]);
        EXPECT_TRUE(std::ranges::equal(want, std::as_bytes(std::span(result.memory[static_cast<std::size_t>(r)][t]))))
            << rank.tensors[t].name;
      }
    }
  }

  void MegatronTo(const std::string& kind, int ranks, const std::string& sizes, const ParallelLayout& parallel) {
    SCOPED_TRACE(fmt::format("{} megatron:{} on {} ranks", kind, sizes, ranks));
    std::string arguments = fmt::format("megatron --ranks {}", ranks);
    for (const char c : "," + sizes) arguments += c == ',' ? " --" : c == '=' ? " " : std::string(1, c);
    Prepare(kind, ranks, arguments);
    const auto layout = MakeTrainerLayout("megatron:" + sizes, ranks, tensors_, &config_);
    ASSERT_TRUE(layout.ok()) << layout.status().ToString();
    BringTo(SourceOf(*layout), parallel);
  }

  void MeshTo(const std::string& kind, int data, int tensor, const ParallelLayout& parallel) {
    Prepare(kind, data * tensor, fmt::format("mesh --mesh {}x{}", data, tensor));
    const auto layout = MakeTrainerLayout(fmt::format("mesh:{}x{}", data, tensor), data * tensor, tensors_, nullptr);
    ASSERT_TRUE(layout.ok()) << layout.status().ToString();
    BringTo(SourceOf(*layout), parallel);
  }

  // The wrapping and the order of parameters of Hugging Face's Llama.
  void FsdpTo(const std::string& kind, int ranks, const ParallelLayout& parallel) {
    Prepare(kind, ranks, fmt::format("fsdp --ranks {}", ranks));
    std::vector<FlatUnit> units = {{.name = "_fsdp_wrapped_module._flat_param", .tensors = {}}};
    for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}) {
      if (dtypes_.contains(name)) units[0].tensors.emplace_back(name);
    }
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      FlatUnit& unit = units.emplace_back();
      unit.name = fmt::format("model.layers.{}._fsdp_wrapped_module._flat_param", layer);
      for (const char* name :
           {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
            "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"}) {
        unit.tensors.push_back(fmt::format("model.layers.{}.{}.weight", layer, name));
      }
    }
    const auto flat = FlatParameterLayout(tensors_, units, ranks);
    ASSERT_TRUE(flat.ok()) << flat.status().ToString();
    BringTo(SourceOf(*flat, units), parallel);
  }

  TempDirectory dir_;
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelConfig config_;
  std::vector<TensorSpec> tensors_;
  std::unordered_map<std::string, DType> dtypes_;
  std::vector<std::unique_ptr<Checkpoint>> held_;  // per trainer rank

 private:
  static std::span<const std::byte> DataOf(const Checkpoint& file, const LocalTensor& local) {
    for (std::size_t t = 0; t < file.tensors().size(); ++t) {
      const TensorSpec& spec = file.tensors()[t];
      if (spec.name != local.name) continue;
      EXPECT_EQ(spec.shape, local.shape) << local.name;
      EXPECT_EQ(spec.dtype, local.dtype) << local.name;
      return file.Data(static_cast<int>(t));
    }
    ADD_FAILURE() << "the oracle has no " << local.name;
    return {};
  }
  const std::byte* Find(std::size_t rank, const LocalTensor& local) { return DataOf(*held_[rank], local).data(); }
};

TEST_F(TrainerOracleTest, MegatronQueryGroupsReachTwiceAsManyRanksWithReplicatedKvHeads) {
  MegatronTo("llama", 2, "tp=2", {.tensor = 4});
}

TEST_F(TrainerOracleTest, ThreeQueryGroupsAreCutInTheMiddleOfOne) {
  MegatronTo("three-kv-heads", 2, "tp=2", {.tensor = 6});
}

TEST_F(TrainerOracleTest, ThreeQueryGroupsOnThreeRanksReachSix) {
  MegatronTo("three-kv-heads", 3, "tp=3", {.tensor = 6});
}

TEST_F(TrainerOracleTest, MoreMegatronRanksThanQueryGroupsShareThem) { MegatronTo("llama", 4, "tp=4", {.tensor = 2}); }

TEST_F(TrainerOracleTest, MegatronBiasesAreInterleavedAsTheWeightsAre) {
  MegatronTo("llama-biases", 2, "tp=2", {.tensor = 4});
}

TEST_F(TrainerOracleTest, MegatronStagesNumberTheirOwnLayersAndATiedHeadLiesOnTheLast) {
  MegatronTo("llama-tied", 4, "tp=2,pp=2", {.tensor = 2});
}

TEST_F(TrainerOracleTest, MegatronVirtualStagesHoldSeveralRangesOfLayers) {
  MegatronTo("four-layers", 4, "tp=2,pp=2,vpp=2", {.tensor = 4});
}

TEST_F(TrainerOracleTest, LayersWithExpertsAndWithoutLieOnStagesOfTheirOwn) {
  MegatronTo("qwen3-moe", 6, "tp=2,pp=3,ep=2,etp=1", {.tensor = 2});
}

TEST_F(TrainerOracleTest, ExpertsOfFourRanksReachTwo) {
  MegatronTo("qwen3-moe", 4, "tp=1,ep=4", {.tensor = 2, .expert_parallel = true});
}

TEST_F(TrainerOracleTest, ExpertsThatAreCutByTensorParallelismReachWholeOnes) {
  MegatronTo("qwen3-moe", 8, "tp=2,ep=2,etp=2", {.tensor = 4, .expert_parallel = true});
}

TEST_F(TrainerOracleTest, SixExpertsOfThreeRanksReachTwo) {
  MegatronTo("six-experts", 3, "ep=3", {.tensor = 2, .expert_parallel = true});
}

TEST_F(TrainerOracleTest, MegatronLatentAttentionReachesFusedProjections) {
  MegatronTo("deepseek-v3", 4, "tp=2,ep=2,etp=1", {.tensor = 4});
}

TEST_F(TrainerOracleTest, FlatParametersOverThreeRanksOfSizesThatDivideByNothingReachTwo) {
  FsdpTo("indivisible", 3, {.tensor = 2});
}

TEST_F(TrainerOracleTest, FlatParametersOverMoreRanksThanItsLastTensorsHaveElements) {
  FsdpTo("llama-tied", 17, {.tensor = 1});
}

TEST_F(TrainerOracleTest, AMeshThatCutsADimensionTwiceReachesOneRank) { MeshTo("llama", 2, 2, {.tensor = 1}); }

TEST_F(TrainerOracleTest, AMeshWithUnevenAndEmptyShardsReachesTwo) { MeshTo("indivisible", 4, 4, {.tensor = 2}); }

TEST_F(TrainerOracleTest, AMeshOfAModelWithBiasesAndExpertsReachesFour) { MeshTo("llama-biases", 3, 2, {.tensor = 4}); }

}  // namespace
}  // namespace bascule
