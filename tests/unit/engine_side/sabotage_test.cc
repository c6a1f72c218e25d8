// Engine memory in which everything arrived and something lies where it does not belong: all shapes agree, and only the
// digest of what lies where the map says tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "bridge/manifest/manifest.h"
#include "engine_side/live_digest.h"
#include "kernels/pack.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

ModelConfig SmallModel(std::int64_t experts) {
  ModelConfig config;
  config.architecture = experts == 0 ? "LlamaForCausalLM" : "Qwen3MoeForCausalLM";
  config.layers = 1;
  config.hidden = 32;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_size = 8;
  config.ffn = 48;
  config.vocabulary = 130;
  config.max_positions = 64;
  if (experts != 0) {
    config.qk_norm = true;
    config.experts = {.count = experts, .per_token = 2, .ffn = 16};
  }
  return config;
}

// The memory of every engine rank, filled as the map says from random logical tensors.
class EngineMemory {
 public:
  EngineMemory(std::int64_t experts, int ranks)
      : layout_(MakeEngineLayout(SmallModel(experts), DType::kBf16, {.tensor = ranks})->layout),
        plan_(*PlanOfEngine(layout_)) {
    std::mt19937 random(7);
    for (const TensorSpec& tensor : layout_.tensors) {
      logical_.emplace_back(static_cast<std::size_t>(tensor.Bytes()));
      std::generate(logical_.back().begin(), logical_.back().end(), [&] { return static_cast<std::byte>(random()); });
    }
    for (const RankLayout& rank : layout_.ranks) Fill(rank);
  }

  // Names of the logical tensors whose digest is not that of what was sent, or whose holders differ.
  std::set<std::string> Found() const {
    const MemoryDigest digest =
        *DigestMemory([&](int rank, int tensor) { return std::span(Local(rank, tensor)); }, layout_, plan_);
    std::set<std::string> found;
    for (std::size_t t = 0; t < layout_.tensors.size(); ++t) {
      const TensorDigest sent = DigestRunOnHost(KeyOf(layout_.tensors[t]), 0, logical_[t]);
      if (digest.totals[t] != sent) found.insert(layout_.tensors[t].name);
    }
    for (const Verifier::Difference& difference : digest.replica_differences) {
      found.insert(layout_.tensors[static_cast<std::size_t>(difference.tensor)].name);
    }
    return found;
  }

  // Exchanges what lies in two boxes of rows that hold (parts of) these logical tensors.
  void Swap(int rank_a, const std::string& a, int rank_b, const std::string& b) {
    const std::span<std::byte> one = RowsOf(rank_a, a);
    const std::span<std::byte> other = RowsOf(rank_b, b);
    ASSERT_EQ(one.size(), other.size());
    ASSERT_FALSE(std::equal(one.begin(), one.end(), other.begin()));
    std::swap_ranges(one.begin(), one.end(), other.begin());
  }
  void GiveRank(int rank, int anothers) {
    memory_[static_cast<std::size_t>(rank)] = memory_[static_cast<std::size_t>(anothers)];
  }
  std::span<std::byte> RowsOf(int rank, const std::string& logical) {
    const RankLayout& of_rank = layout_.ranks[static_cast<std::size_t>(rank)];
    for (const MapRow& row : of_rank.rows) {
      if (row.logical == kFill || layout_.tensors[static_cast<std::size_t>(row.logical)].name != logical) continue;
      const LocalTensor& tensor = of_rank.tensors[static_cast<std::size_t>(row.local)];
      const BoxPlace place = PlaceIn(row.local_box, tensor.shape);
      const auto bytes = static_cast<std::size_t>(row.local_box.Elements() * 2);
      return std::span(Local(rank, row.local)).subspan(static_cast<std::size_t>(place.offset * 2), bytes);
    }
    ADD_FAILURE() << logical;
    return {};
  }

 private:
  void Fill(const RankLayout& rank) {
    std::vector<std::vector<std::byte>>& memory = memory_.emplace_back();
    for (const LocalTensor& tensor : rank.tensors) memory.emplace_back(static_cast<std::size_t>(tensor.Bytes()));
    for (const MapRow& row : rank.rows) {
      if (row.logical == kFill) continue;
      const auto logical = static_cast<std::size_t>(row.logical);
      const auto local = static_cast<std::size_t>(row.local);
      CopyBoxOnHost(ShapeOf(row.local_box), 2, logical_[logical].data(),
                    PlaceIn(row.logical_box, layout_.tensors[logical].shape), memory[local].data(),
                    PlaceIn(row.local_box, rank.tensors[local].shape));
    }
  }
  const std::vector<std::byte>& Local(int rank, int tensor) const {
    return memory_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(tensor)];
  }
  std::vector<std::byte>& Local(int rank, int tensor) {
    return memory_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(tensor)];
  }

  const Layout layout_;
  const ReceivePlan plan_;
  std::vector<std::vector<std::byte>> logical_;
  std::vector<std::vector<std::vector<std::byte>>> memory_;
};

std::string Attention(const std::string& part) { return "model.layers.0.self_attn." + part + "_proj.weight"; }
std::string Ffn(const std::string& part) { return "model.layers.0.mlp." + part + "_proj.weight"; }
std::string Expert(int number, const std::string& part) {
  return "model.layers.0.mlp.experts." + std::to_string(number) + "." + part + "_proj.weight";
}

TEST(SabotageTest, NothingIsFoundWhereEverythingIsInItsPlace) {
  for (const int ranks : {1, 2, 4}) {
    EXPECT_THAT(EngineMemory(0, ranks).Found(), IsEmpty()) << ranks;
    EXPECT_THAT(EngineMemory(4, ranks).Found(), IsEmpty()) << ranks;
  }
}

TEST(SabotageTest, KeysInThePlaceOfValuesAreFound) {
  EngineMemory memory(0, 2);

  memory.Swap(1, Attention("k"), 1, Attention("v"));

  EXPECT_THAT(memory.Found(), UnorderedElementsAre(Attention("k"), Attention("v")));
}

TEST(SabotageTest, GateInThePlaceOfUpIsFound) {
  EngineMemory memory(0, 2);

  memory.Swap(0, Ffn("gate"), 0, Ffn("up"));

  EXPECT_THAT(memory.Found(), UnorderedElementsAre(Ffn("gate"), Ffn("up")));
}

TEST(SabotageTest, TwoExpertsThatChangedPlacesAreFound) {
  EngineMemory memory(4, 2);

  memory.Swap(1, Expert(0, "up"), 1, Expert(3, "up"));

  EXPECT_THAT(memory.Found(), UnorderedElementsAre(Expert(0, "up"), Expert(3, "up")));
}

TEST(SabotageTest, TheKvHeadsOfTwoRanksThatChangedPlacesAreFound) {
  EngineMemory memory(0, 2);

  memory.Swap(0, Attention("k"), 1, Attention("k"));

  EXPECT_THAT(memory.Found(), UnorderedElementsAre(Attention("k")));
}

TEST(SabotageTest, AReplicaOfAKvHeadThatIsAnotherHeadIsFound) {
  EngineMemory memory(0, 4);  // ranks 0 and 1 hold head 0, 2 and 3 head 1

  std::ranges::copy(memory.RowsOf(2, Attention("v")), memory.RowsOf(1, Attention("v")).begin());

  EXPECT_THAT(memory.Found(), UnorderedElementsAre(Attention("v")));
}

// C-061.
TEST(SabotageTest, ARankThatHoldsAnothersBytesIsFoundInEveryTensorThatIsCut) {
  EngineMemory memory(0, 2);

  memory.GiveRank(1, 0);

  EXPECT_THAT(memory.Found(),
              UnorderedElementsAre("model.embed_tokens.weight", Attention("q"), Attention("k"), Attention("v"),
                                   Attention("o"), Ffn("gate"), Ffn("up"), Ffn("down"), "lm_head.weight"));
}

TEST(SabotageTest, OneHalfOfATensorThatIsStaleIsFound) {
  EngineMemory memory(0, 2);

  memory.RowsOf(1, Ffn("up"))[5] ^= std::byte{16};

  EXPECT_THAT(memory.Found(), UnorderedElementsAre(Ffn("up")));
}

}  // namespace
}  // namespace bascule
