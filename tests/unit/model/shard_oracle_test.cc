// Engine memory of every tensor-parallel rank beside tests/support/python/shard_oracle.py, which concatenates, cuts and
// fuses whole tensors and knows nothing of layouts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>

#include "bridge/plan/planner.h"
#include "checkpoint/checkpoint.h"
#include "model/engine_layout.h"
#include "tests/support/carry_out/carry_out.h"
#include "tests/support/run_python.h"
#include "tests/support/temp_directory.h"

namespace bascule {
namespace {

using RankMemory = std::vector<std::string>;  // bytes per local tensor

// A checkpoint's memory under canonical names.
class NamedSource final : public WeightSource {
 public:
  NamedSource(const Checkpoint& checkpoint, const Layout& layout) : checkpoint_(checkpoint), layout_(layout) {}
  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int sender_rank, int tensor) const override { return checkpoint_.Base(sender_rank, tensor); }

 private:
  const Checkpoint& checkpoint_;
  const Layout& layout_;
};

struct Kind {
  const char *script, *name;
  friend std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }
};

class ShardOracleTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    RunPython(GetParam().script, {GetParam().name, dir_.File("checkpoint")});
    checkpoint_ = *Checkpoint::Open(dir_.File("checkpoint"));
    Result<ModelConfig> config = ParseModelConfig(checkpoint_->config_json());
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    config_ = *config;
    Result<Layout> sender = CanonicalSenderLayout(config_, checkpoint_->layout(), &options_.ignore);
    ASSERT_TRUE(sender.ok()) << sender.status().ToString();
    sender_ = *sender;
    for (const TensorSpec& tensor : sender_.tensors) dtypes_[tensor.name] = tensor.dtype;
  }

  DTypeOf Stored() const {
    return [this](std::string_view name) {
      const auto found = dtypes_.find(std::string(name));
      return found == dtypes_.end() ? DType::kBf16 : found->second;
    };
  }

  struct Held {
    LocalTensor tensor;
    std::string bytes;
  };
  using HeldByName = std::map<std::string, Held>;

  void CompareRank(const HeldByName& held, const std::string& expected_file) {
    const auto expected = Checkpoint::Open(expected_file);
    ASSERT_TRUE(expected.ok()) << expected.status().ToString();
    ASSERT_EQ(held.size(), (*expected)->tensors().size());
    for (std::size_t t = 0; t < held.size(); ++t) {
      const TensorSpec& spec = (*expected)->tensors()[t];
      ASSERT_TRUE(held.contains(spec.name)) << spec.name;
      const Held& ours = held.at(spec.name);
      EXPECT_EQ(ours.tensor.shape, spec.shape) << spec.name;
      EXPECT_EQ(ours.tensor.dtype, spec.dtype) << spec.name;
      const std::span<const std::byte> data = (*expected)->Data(static_cast<int>(t));
      EXPECT_TRUE(std::ranges::equal(data, std::as_bytes(std::span(ours.bytes)))) << spec.name;
    }
  }

  // What all pipeline stages of one tensor-parallel rank hold together. A tensor that lies on two of them is the same.
  static HeldByName OverStages(const Layout& layout, const std::vector<RankMemory>& memory, int tensor_rank,
                               const ParallelLayout& parallel) {
    HeldByName held;
    for (int stage = 0; stage < parallel.pipeline; ++stage) {
      const auto rank = static_cast<std::size_t>(stage * parallel.tensor + tensor_rank);
      for (std::size_t t = 0; t < layout.ranks[rank].tensors.size(); ++t) {
        const LocalTensor& tensor = layout.ranks[rank].tensors[t];
        const auto [at, is_new] = held.try_emplace(tensor.name, Held{tensor, memory[rank][t]});
        EXPECT_TRUE(is_new || at->second.bytes == memory[rank][t]) << tensor.name;
      }
    }
    return held;
  }

  // Our layout of `parallel`, carried out, equals what the oracle wrote to `directory`, or both refuse.
  void Compare(const ParallelLayout& parallel, const std::string& directory) {
    SCOPED_TRACE(parallel.ToString());
    const Result<EngineLayout> engine = MakeEngineLayout(config_, Stored(), parallel);
    if (std::filesystem::exists(fmt::format("{}/tp{}-refused", directory, parallel.tensor))) {
      EXPECT_EQ(engine.status().reason(), "does_not_divide");
      return;
    }
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    const Result<Plan> plan = MakePlan(sender_, engine->layout, options_);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    const std::vector<RankMemory> memory = CarryOut(*plan, NamedSource(*checkpoint_, sender_), engine->layout).memory;
    for (int rank = 0; rank < parallel.tensor; ++rank) {
      SCOPED_TRACE(fmt::format("tensor-parallel rank {}", rank));
      CompareRank(OverStages(engine->layout, memory, rank, parallel),
                  fmt::format("{}/tp{}-rank-{}.safetensors", directory, parallel.tensor, rank));
    }
  }

  TempDirectory dir_;
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelConfig config_;
  Layout sender_;
  PlanOptions options_{.bucket_bytes = 4096, .ignore = {}};
  std::unordered_map<std::string, DType> dtypes_;
};

constexpr int kTensorRanks[] = {1, 2, 3, 4, 6, 8};

TEST_P(ShardOracleTest, EveryRankHoldsTheBytesOfAnIndependentConcatenation) {
  RunPython("shard_oracle.py", {dir_.File("checkpoint"), dir_.File("expected"), "--tp", "1,2,3,4,6,8"});

  for (const int tensor : kTensorRanks) {
    Compare({.tensor = tensor}, dir_.File("expected"));
    Compare({.tensor = tensor, .pipeline = 2}, dir_.File("expected"));
  }
}

class ExpertOracleTest : public ShardOracleTest {};

TEST_P(ExpertOracleTest, WithExpertParallelismEveryRankHoldsWholeExperts) {
  RunPython("shard_oracle.py",
            {dir_.File("checkpoint"), dir_.File("expected"), "--tp", "1,2,3,4,6,8", "--expert-parallel"});

  for (const int tensor : kTensorRanks) Compare({.tensor = tensor, .expert_parallel = true}, dir_.File("expected"));
}

std::string NameOf(const testing::TestParamInfo<Kind>& instance) {
  std::string name = instance.param.name;
  std::ranges::replace(name, '-', '_');
  return name;
}

constexpr const char* kArchitectures = "architectures.py";
INSTANTIATE_TEST_SUITE_P(Kinds, ShardOracleTest,
                         testing::Values(Kind{"fixtures.py", "dense"}, Kind{"fixtures.py", "tied"},
                                         Kind{"fixtures.py", "tied-head"}, Kind{"fixtures.py", "bias"},
                                         Kind{"fixtures.py", "qk-norm"}, Kind{kArchitectures, "llama"},
                                         Kind{kArchitectures, "llama-biases"}, Kind{kArchitectures, "llama-tied"},
                                         Kind{kArchitectures, "mistral"}, Kind{kArchitectures, "qwen2"},
                                         Kind{kArchitectures, "qwen3"}, Kind{kArchitectures, "phi3"},
                                         Kind{kArchitectures, "gemma2"}, Kind{kArchitectures, "gemma3"},
                                         Kind{kArchitectures, "mixtral"}, Kind{kArchitectures, "mixtral-stacked"},
                                         Kind{kArchitectures, "qwen3-moe"}, Kind{kArchitectures, "qwen3-moe-stacked"},
                                         Kind{kArchitectures, "deepseek-v2"}, Kind{kArchitectures, "deepseek-v3"},
                                         Kind{kArchitectures, "one-kv-head"}, Kind{kArchitectures, "three-kv-heads"},
                                         Kind{kArchitectures, "twelve-heads"}, Kind{kArchitectures, "value-heads"},
                                         Kind{kArchitectures, "six-experts"}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Kinds, ExpertOracleTest,
                         testing::Values(Kind{kArchitectures, "mixtral"}, Kind{kArchitectures, "mixtral-stacked"},
                                         Kind{kArchitectures, "qwen3-moe"}, Kind{kArchitectures, "deepseek-v3"},
                                         Kind{kArchitectures, "six-experts"}),
                         NameOf);

}  // namespace
}  // namespace bascule
