// Faults that users of such systems have met, each as a sender's layout and what every engine rank must then hold.
// Elements carry their logical tensor and position, so that a misplaced one is found.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "bridge/plan/planner.h"
#include "model/engine_layout.h"
#include "tests/unit/plan/random_layouts.h"

namespace bascule {
namespace {

constexpr std::int64_t kHidden = 4;

ModelConfig TinyConfig() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.layers = 1;
  config.hidden = kHidden;
  config.query_heads = 4;
  config.kv_heads = 2;
  config.head_size = 2;
  config.ffn = 12;
  config.vocabulary = 130;
  return config;
}

ModelConfig TinyMixture(std::int64_t experts) {
  ModelConfig config = TinyConfig();
  config.architecture = "Qwen3MoeForCausalLM";
  config.experts = {.count = experts, .per_token = 2, .ffn = 6};
  return config;
}

// Sends what the rows of `sender` say lies there and returns engine memory; padding is kFillId.
Result<std::vector<RankMemory>> Sent(const Layout& sender, const Layout& engine) {
  ASSIGN_OR_RETURN(const Plan plan, MakePlan(sender, engine, {.bucket_bytes = 4096, .ignore = {}}));
  const std::vector<RankMemory> from = MemoryOf(sender);
  std::vector<RankMemory> to = GarbageOf(engine);
  const auto at = [](auto& vector, std::int32_t index) -> auto& { return vector[static_cast<std::size_t>(index)]; };
  for (const Bucket& bucket : plan.buckets) {
    const Route route = at(plan.routes, bucket.route);
    for (const Slice& slice : bucket.slices) {
      const LocalTensor& source = at(at(sender.ranks, route.sender_rank).tensors, slice.sender_tensor);
      const LocalTensor& target = at(at(engine.ranks, route.engine_rank).tensors, slice.engine_tensor);
      const auto read = PositionsOf(slice.sender_box, source.shape);
      const auto write = PositionsOf(slice.engine_box, target.shape);
      for (std::size_t i = 0; i < read.size(); ++i) {
        at(at(to, route.engine_rank), slice.engine_tensor)[static_cast<std::size_t>(write[i])] =
            at(at(from, route.sender_rank), slice.sender_tensor)[static_cast<std::size_t>(read[i])];
      }
    }
  }
  for (std::size_t r = 0; r < engine.ranks.size(); ++r) {
    for (const MapRow& row : engine.ranks[r].rows) {
      if (row.logical != kFill) continue;
      const Dims& shape = at(engine.ranks[r].tensors, row.local).shape;
      for (const std::int64_t position : PositionsOf(row.local_box, shape)) {
        at(to[r], row.local)[static_cast<std::size_t>(position)] = kFillId;
      }
    }
  }
  return to;
}

std::size_t LocalIndex(const RankLayout& rank, const std::string& name) {
  const auto found = std::ranges::find(rank.tensors, name, &LocalTensor::name);
  CHECK(found != rank.tensors.end());
  return static_cast<std::size_t>(found - rank.tensors.begin());
}

std::int32_t LogicalIndex(const Layout& layout, const std::string& name) {
  const auto found = std::ranges::find(layout.tensors, name, &TensorSpec::name);
  CHECK(found != layout.tensors.end());
  return static_cast<std::int32_t>(found - layout.tensors.begin());
}

// Rows [begin, end) of the logical matrix `name`.
std::vector<std::uint64_t> IdsOfRows(const std::string& name, std::int64_t begin, std::int64_t end,
                                     std::int64_t columns) {
  std::vector<std::uint64_t> ids;
  for (std::int64_t element = begin * columns; element < end * columns; ++element) ids.push_back(IdOf(name, element));
  return ids;
}

std::vector<std::uint64_t> Joined(std::vector<std::uint64_t> first, const std::vector<std::uint64_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// A plain sender in which rank 0 holds `local` of several logical tensors instead of those by themselves.
struct FusedRow {
  std::string logical;
  std::int64_t local_row, logical_row, rows;
};
Layout FusedSender(const ModelConfig& config, const std::string& local_name, std::int64_t local_rows,
                   const std::vector<FusedRow>& fused) {
  Layout layout = PlainLayout(LogicalTensors(config, DType::kBf16));
  RankLayout& rank = layout.ranks[0];
  std::erase_if(rank.rows, [&](const MapRow& row) {
    const std::string& name = layout.tensors[static_cast<std::size_t>(row.logical)].name;
    return std::ranges::any_of(fused, [&](const FusedRow& f) { return f.logical == name; });
  });
  const auto local = static_cast<std::int32_t>(rank.tensors.size());
  rank.tensors.push_back({.name = local_name, .dtype = DType::kBf16, .shape = {local_rows, kHidden}, .stride = {}});
  for (const FusedRow& f : fused) {
    rank.rows.push_back({local,
                         {{f.local_row, 0}, {f.rows, kHidden}},
                         LogicalIndex(layout, f.logical),
                         {{f.logical_row, 0}, {f.rows, kHidden}}});
  }
  return layout;
}

constexpr const char* kGate = "model.layers.0.mlp.gate_proj.weight";
constexpr const char* kUp = "model.layers.0.mlp.up_proj.weight";

// C-064: whatever form gate and up have at the sender, rank r holds its gate rows, then its up rows.
TEST(MappingCasesTest, GateAndUpArriveInOrderFromEveryFormOfSource) {
  std::vector<FusedRow> interleaved;
  for (std::int64_t row = 0; row < 12; ++row) {
    interleaved.push_back({kGate, 2 * row, row, 1});
    interleaved.push_back({kUp, 2 * row + 1, row, 1});
  }
  const std::vector<std::pair<std::string, std::vector<FusedRow>>> sources = {
      {"gate then up", {{kGate, 0, 0, 12}, {kUp, 12, 0, 12}}},
      {"up then gate", {{kUp, 0, 0, 12}, {kGate, 12, 0, 12}}},
      {"per rank", {{kGate, 0, 0, 6}, {kUp, 6, 0, 6}, {kGate, 12, 6, 6}, {kUp, 18, 6, 6}}},
      {"interleaved", interleaved}};
  for (const int ranks : {1, 2, 4}) {
    const EngineLayout engine = *MakeEngineLayout(TinyConfig(), DType::kBf16, {.tensor = ranks});
    for (const auto& [form, fused] : sources) {
      SCOPED_TRACE(fmt::format("{} to {} ranks", form, ranks));

      const auto memory = Sent(FusedSender(TinyConfig(), "fused", 24, fused), engine.layout);

      ASSERT_TRUE(memory.ok()) << memory.status().ToString();
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t begin = rank * 12 / ranks, end = (rank + 1) * 12 / ranks;
        EXPECT_EQ((*memory)[static_cast<std::size_t>(rank)][static_cast<std::size_t>(engine.tensors.layers[0].gate_up)],
                  Joined(IdsOfRows(kGate, begin, end, kHidden), IdsOfRows(kUp, begin, end, kHidden)));
      }
    }
  }
}

// C-064.
TEST(MappingCasesTest, AFusedSourceThatNoRuleDeclaresIsRefused) {
  std::vector<TensorSpec> stored = LogicalTensors(TinyConfig(), DType::kBf16);
  std::erase_if(stored, [](const TensorSpec& tensor) { return tensor.name == kGate || tensor.name == kUp; });
  stored.push_back({"model.layers.0.mlp.gate_up_proj.weight", DType::kBf16, {24, kHidden}});
  std::vector<std::string> ignore;
  const Layout sender = *CanonicalSenderLayout(TinyConfig(), PlainLayout(stored), &ignore);

  const Status status = Sent(sender, MakeEngineLayout(TinyConfig(), DType::kBf16)->layout).status();

  EXPECT_EQ(status.reason(), "tensor_missing");
  for (const char* name : {kGate, kUp, "mlp.gate_up_proj.weight"}) {
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  }
}

// The sender's rank r holds the experts of ep rank order[r], whole.
Layout ExpertParallelSender(const ModelConfig& config, const std::vector<int>& order) {
  Layout layout{.tensors = LogicalTensors(config, DType::kBf16), .ranks = std::vector<RankLayout>(order.size())};
  const auto add = [&](RankLayout& rank, std::size_t tensor) {
    const Box whole = Box::Whole(layout.tensors[tensor].shape);
    rank.rows.push_back(
        {static_cast<std::int32_t>(rank.tensors.size()), whole, static_cast<std::int32_t>(tensor), whole});
    rank.tensors.push_back(
        {.name = layout.tensors[tensor].name, .dtype = DType::kBf16, .shape = whole.extent, .stride = {}});
  };
  const auto each = config.experts.count / static_cast<std::int64_t>(order.size());
  for (std::size_t tensor = 0; tensor < layout.tensors.size(); ++tensor) {
    const std::string& name = layout.tensors[tensor].name;
    const std::size_t at = name.find(".experts.");
    for (std::size_t rank = 0; rank < order.size(); ++rank) {
      if (at != std::string::npos && std::stoi(name.substr(at + 9)) / each != order[rank]) continue;
      add(layout.ranks[rank], tensor);
    }
  }
  return layout;
}

// C-065.
TEST(MappingCasesTest, EveryExpertSlotHoldsTheExpertOfItsNumberForAnyPairOfRankCounts) {
  const ModelConfig config = TinyMixture(8);
  for (const int senders : {1, 2, 4, 8}) {
    std::vector<int> order(static_cast<std::size_t>(senders));
    std::iota(order.rbegin(), order.rend(), 0);  // trainer ranks the other way round
    const Layout sender = ExpertParallelSender(config, order);
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("{} to {}", senders, ranks));
      const EngineLayout engine = *MakeEngineLayout(config, DType::kBf16, {.tensor = ranks, .expert_parallel = true});

      const auto memory = Sent(sender, engine.layout);

      ASSERT_TRUE(memory.ok()) << memory.status().ToString();
      for (std::int64_t expert = 0; expert < 8; ++expert) {
        const std::int64_t each = 8 / ranks;
        const auto& held = (*memory)[static_cast<std::size_t>(expert / each)]
                                    [static_cast<std::size_t>(engine.tensors.layers[0].experts_gate_up)];
        const std::string name = fmt::format("model.layers.0.mlp.experts.{}.", expert);
        const auto wanted = Joined(IdsOfRows(name + "gate_proj.weight", 0, 6, kHidden),
                                   IdsOfRows(name + "up_proj.weight", 0, 6, kHidden));
        const auto begin = held.begin() + expert % each * std::ssize(wanted);
        EXPECT_EQ(std::vector<std::uint64_t>(begin, begin + std::ssize(wanted)), wanted);
      }
    }
  }
  EXPECT_EQ(MakeEngineLayout(TinyMixture(6), DType::kBf16, {.tensor = 4, .expert_parallel = true}).status().message(),
            "model.layers.0.mlp.experts.w13_weight: experts: 6 do not divide among 4 ranks");
}

// C-068: the trainer pads the vocabulary to 256 rows of garbage, the engine to 192 rows of zeros.
TEST(MappingCasesTest, PaddingOfTheSenderNeverArrivesAndThatOfTheEngineIsZero) {
  for (const std::string name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    const Layout sender = FusedSender(TinyConfig(), "padded", 256, {{name, 0, 0, 130}});
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("{} on {} ranks", name, ranks));
      const EngineLayout engine = *MakeEngineLayout(TinyConfig(), DType::kBf16, {.tensor = ranks});

      const auto memory = Sent(sender, engine.layout);

      ASSERT_TRUE(memory.ok()) << memory.status().ToString();
      std::vector<std::uint64_t> all;
      for (std::size_t rank = 0; rank < memory->size(); ++rank) {
        all = Joined(std::move(all), (*memory)[rank][LocalIndex(engine.layout.ranks[rank], name)]);
      }
      EXPECT_EQ(all, Joined(IdsOfRows(name, 0, 130, kHidden), std::vector<std::uint64_t>(62 * kHidden, kFillId)));
    }
  }
}

// C-062: biases follow the rows of their weights, and none is dropped or made up.
TEST(MappingCasesTest, BiasesHaveTheHeadRuleOfTheirWeights) {
  ModelConfig config = TinyConfig();
  config.qkv_bias = true;
  const EngineLayout engine = *MakeEngineLayout(config, DType::kBf16, {.tensor = 4});
  const Layout sender = PlainLayout(LogicalTensors(config, DType::kBf16));

  const auto memory = Sent(sender, engine.layout);

  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const std::string attention = "model.layers.0.self_attn.";
    const std::int64_t kv = rank / 2 * 2;
    EXPECT_EQ((*memory)[static_cast<std::size_t>(rank)][static_cast<std::size_t>(engine.tensors.layers[0].qkv_bias)],
              Joined(IdsOfRows(attention + "q_proj.bias", 2 * rank, 2 * rank + 2, 1),
                     Joined(IdsOfRows(attention + "k_proj.bias", kv, kv + 2, 1),
                            IdsOfRows(attention + "v_proj.bias", kv, kv + 2, 1))));
  }
}

// C-062.
TEST(MappingCasesTest, AMissingBiasAndOneThatTheEngineLacksAreReported) {
  ModelConfig config = TinyConfig();
  config.qkv_bias = true;
  const Layout engine = MakeEngineLayout(config, DType::kBf16)->layout;
  std::vector<TensorSpec> missing = LogicalTensors(config, DType::kBf16);
  std::erase_if(missing, [](const TensorSpec& tensor) { return tensor.name.ends_with("k_proj.bias"); });
  std::vector<TensorSpec> extra = LogicalTensors(config, DType::kBf16);
  extra.push_back({"model.layers.0.self_attn.o_proj.bias", DType::kBf16, {kHidden}});

  const Status without = Sent(PlainLayout(missing), engine).status();
  const Status with = Sent(PlainLayout(extra), engine).status();

  EXPECT_EQ(without.reason(), "tensor_missing");
  EXPECT_NE(without.message().find("model.layers.0.self_attn.k_proj.bias"), std::string::npos);
  EXPECT_EQ(with.reason(), "tensor_unexpected");
  EXPECT_NE(with.message().find("o_proj.bias (nearest: model.layers.0.self_attn."), std::string::npos)
      << with.message();
}

// C-079: a decoder by itself, in a wrapper, in a nested one.
TEST(MappingCasesTest, EveryEngineTensorIsReachedOnceFromEachFormOfPrefix) {
  ModelConfig config = TinyConfig();
  config.architecture = "Gemma3ForCausalLM";
  config.qk_norm = true;
  const Layout engine = MakeEngineLayout(config, DType::kBf16, {.tensor = 2})->layout;
  const auto plain = [](const std::string& name) { return name; };
  const auto wrapped = [](const std::string& name) { return "language_model." + name; };
  const auto nested = [](const std::string& name) {
    return name.starts_with("model.") ? "model.language_model." + name.substr(6) : name;
  };
  const auto bare = [](const std::string& name) { return name.starts_with("model.") ? name.substr(6) : name; };
  for (const auto& stored_name :
       std::vector<std::function<std::string(const std::string&)>>{plain, wrapped, nested, bare}) {
    std::vector<TensorSpec> stored = LogicalTensors(config, DType::kBf16);
    for (TensorSpec& tensor : stored) tensor.name = stored_name(tensor.name);
    std::vector<std::string> ignore;
    const Result<Layout> sender = CanonicalSenderLayout(config, PlainLayout(stored), &ignore);
    ASSERT_TRUE(sender.ok()) << sender.status().ToString();

    const auto memory = Sent(*sender, engine);

    ASSERT_TRUE(memory.ok()) << stored.front().name << ": " << memory.status().ToString();
    EXPECT_EQ(*memory, MemoryOf(engine)) << stored.front().name;
  }
}

// Whatever flat ranges FSDP cuts a stack of experts into, each element is that of its expert.
TEST(MappingCasesTest, FlatRangesOfStackedExpertsAreBoxesOfTheirExperts) {
  const std::string stacked = "model.layers.0.mlp.experts.gate_up_proj";
  const Dims shape = {4, 12, kHidden};
  std::map<std::uint64_t, std::uint64_t> logical_of;
  for (std::int64_t element = 0; element < 4 * 12 * kHidden; ++element) {
    const std::int64_t expert = element / (12 * kHidden), row = element / kHidden % 12;
    const std::string name =
        fmt::format("model.layers.0.mlp.experts.{}.{}_proj.weight", expert, row < 6 ? "gate" : "up");
    logical_of[IdOf(stacked, element)] = IdOf(name, row % 6 * kHidden + element % kHidden);
  }
  for (std::int64_t ranks = 1; ranks <= 7; ++ranks) {
    SCOPED_TRACE(ranks);
    Layout stored{.tensors = {{stacked, DType::kBf16, shape}}, .ranks = {}};
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::int64_t elements = stored.tensors[0].Elements();
      RankLayout& rank = stored.ranks.emplace_back();
      for (const Box& box : BoxesOfRange(shape, elements * r / ranks, elements * (r + 1) / ranks)) {
        rank.rows.push_back({static_cast<std::int32_t>(rank.tensors.size()), Box::Whole(box.extent), 0, box});
        rank.tensors.push_back({.name = box.ToString(), .dtype = DType::kBf16, .shape = box.extent, .stride = {}});
      }
    }
    std::vector<std::string> ignore;

    const Result<Layout> canonical = CanonicalSenderLayout(TinyMixture(4), stored, &ignore);

    ASSERT_TRUE(canonical.ok()) << canonical.status().ToString();
    std::vector<RankMemory> expected = MemoryOf(stored);
    for (RankMemory& rank : expected) {
      for (std::vector<std::uint64_t>& tensor : rank) {
        for (std::uint64_t& id : tensor) id = logical_of.at(id);
      }
    }
    EXPECT_EQ(MemoryOf(*canonical), expected);
    EXPECT_TRUE(CheckLayout(*canonical).ok());
  }
}

// C-020.
// What a decoder has beside it, an image tower or a draft layer, is left out on request only.
TEST(MappingCasesTest, TensorsBesideTheDecoderAreUnexpectedUnlessAPatternNamesThem) {
  ModelConfig config = TinyConfig();
  config.architecture = "Gemma3ForConditionalGeneration";
  const Layout engine = MakeEngineLayout(config, DType::kBf16)->layout;
  std::vector<TensorSpec> stored = LogicalTensors(config, DType::kBf16);
  for (TensorSpec& tensor : stored) tensor.name = "language_model." + tensor.name;
  stored.push_back({"vision_tower.embeddings.weight", DType::kBf16, {2}});
  stored.push_back({"model.layers.1.eh_proj.weight", DType::kBf16, {2}});
  std::vector<std::string> ignore;
  const Layout sender = *CanonicalSenderLayout(config, PlainLayout(stored), &ignore);
  const auto planned = [&](const std::vector<std::string>& patterns) {
    return MakePlan(sender, engine, {.bucket_bytes = 4096, .ignore = patterns});
  };

  EXPECT_EQ(planned({}).status().reason(), "tensor_unexpected");
  EXPECT_EQ(planned({"vision_tower.*"}).status().reason(), "tensor_unexpected");
  const Result<Plan> plan = planned({"vision_tower.*", "model.layers.1.*"});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->names.loaded.size() + plan->names.ignored.size(), stored.size());
  EXPECT_EQ(planned({"vision_tower.*", "model.layers.1.*", "draft.*"}).status().reason(), "ignore_matches_nothing");
}

// C-005, C-080, C-082: there are no adapters. What one adds to a model is named, by itself and beside the model, and
// never taken for a part of it.
TEST(MappingCasesTest, AnAdapterIsRefusedByTheNamesOfItsTensorsWithItsModelAndAlone) {
  const ModelConfig config = TinyConfig();
  const Layout engine = MakeEngineLayout(config, DType::kBf16)->layout;
  const std::string module = "base_model.model.model.layers.0.self_attn.q_proj.";
  const std::vector<TensorSpec> adapter = {{module + "lora_A.weight", DType::kBf16, {2, kHidden}},
                                           {module + "lora_B.weight", DType::kBf16, {8, 2}}};
  std::vector<TensorSpec> both = adapter;
  for (const TensorSpec& tensor : LogicalTensors(config, DType::kBf16)) {
    both.push_back(tensor);
    const bool wrapped = tensor.name.ends_with("q_proj.weight");
    both.back().name = wrapped ? module + "base_layer.weight" : "base_model.model." + tensor.name;
  }
  const auto planned = [&](const std::vector<TensorSpec>& stored, const std::vector<std::string>& patterns) {
    std::vector<std::string> ignore = patterns;
    return MakePlan(*CanonicalSenderLayout(config, PlainLayout(stored), &ignore), engine,
                    {.bucket_bytes = 4096, .ignore = ignore});
  };

  const Status alone = planned(adapter, {}).status();
  const Status beside = planned(both, {}).status();
  const Result<Plan> without = planned(both, {"*.lora_*"});

  EXPECT_EQ(alone.reason(), "tensor_missing");
  EXPECT_EQ(beside.reason(), "tensor_unexpected");
  for (const char* name : {"layers.0.self_attn.q_proj.lora_A.weight", "layers.0.self_attn.q_proj.lora_B.weight"}) {
    EXPECT_THAT(alone.message(), testing::HasSubstr(name));
    EXPECT_THAT(beside.message(), testing::HasSubstr(name));
  }
  ASSERT_TRUE(without.ok()) << without.status().ToString();
  EXPECT_EQ(without->names.loaded.size(), LogicalTensors(config, DType::kBf16).size());
}

}  // namespace
}  // namespace bascule
