// Any model under any trainer layout reaches any engine layout: every byte crosses once, engine memory is what a
// trainer that is reassembled and cut again gives, digests agree, and no plan with a hole or an overlap passes the
// proof.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "bridge/plan/planner.h"
#include "model/engine_layout.h"
#include "tests/support/carry_out/carry_out.h"
#include "tests/support/scripted_engine/digest_oracle.h"
#include "tests/unit/model/random_models.h"
#include "tests/unit/plan/random_layouts.h"
#include "trainer_side/gather/tensor_gatherer.h"
#include "trainer_side/layouts/flat_parameter_layout.h"
#include "trainer_side/layouts/layout_spec.h"
#include "trainer_side/layouts/mesh_layout.h"
#include "trainer_side/tensor_source.h"

namespace bascule {
namespace {

// Bits of an element of a logical tensor in `dtype`: a number, never a NaN.
std::uint32_t BitsOf(const std::string& tensor, std::int64_t element, DType dtype) {
  std::uint64_t hash = IdOf(tensor, element) * 0x9e3779b97f4a7c15U;
  hash ^= hash >> 29;
  const auto bits = static_cast<std::uint32_t>(hash) & 0xbfffffffU;
  return dtype == DType::kF32 ? bits : bits >> 16;
}

// By rounding to the nearest, ties to even, or by widening.
std::uint32_t Convert(std::uint32_t bits, DType from, DType to) {
  if (from == to) return bits;
  return to == DType::kF32 ? bits << 16 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

void Store(std::uint32_t bits, DType dtype, std::int64_t at, std::byte* base) {
  const auto item = static_cast<std::size_t>(ItemBytes(dtype));
  std::memcpy(base + static_cast<std::size_t>(at) * item, &bits, item);
}

class RandomTrainer {
 public:
  explicit RandomTrainer(std::uint64_t seed) : models_(seed), config_(Config()) {
    const DType weights = Type();
    const DType norms = Type();
    tensors_ = LogicalTensors(config_, weights);
    for (TensorSpec& tensor : tensors_) tensor.dtype = IsNorm(tensor.name) ? norms : weights;
  }

  static bool IsNorm(std::string_view name) { return name.find("norm") != std::string_view::npos; }
  std::int64_t Below(std::int64_t count) { return models_.Below(count); }
  DType Type() { return Below(2) == 0 ? DType::kF32 : DType::kBf16; }
  const ModelConfig& config() const { return config_; }
  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  std::mt19937_64& random() { return models_.random(); }

  Result<EngineLayout> Engine() {
    return MakeEngineLayout(
        config_, [](std::string_view name) { return IsNorm(name) ? DType::kF32 : DType::kBf16; }, models_.Parallel());
  }

  Result<Layout> Trainer() {
    switch (Below(6)) {
      case 0:
        return FromSpec("plain", static_cast<int>(1 + Below(3)));
      case 1:
        return FromSpec("fsdp", static_cast<int>(1 + Below(7)));
      case 2:
        return RandomUnits();
      case 3:
        return RandomMesh();
      case 4:
        return UsualMesh();
      default:
        return Megatron();
    }
  }

 private:
  // Now and then of as many layers as two stages of two chunks need.
  ModelConfig Config() {
    ModelConfig config = models_.Config();
    if (Below(6) == 0) config.layers = 4;
    return config;
  }

  Result<Layout> FromSpec(const std::string& spec, int ranks) {
    return MakeTrainerLayout(spec, ranks, tensors_, &config_);
  }

  // Units of one type each, of any tensors in any order.
  Result<Layout> RandomUnits() {
    std::vector<TensorSpec> shuffled = tensors_;
    std::ranges::shuffle(shuffled, random());
    std::map<std::pair<DType, std::int64_t>, FlatUnit> units;
    for (const TensorSpec& tensor : shuffled) {
      const std::int64_t number = Below(3);
      FlatUnit& unit = units[{tensor.dtype, number}];
      unit.name = fmt::format("{}.{}", DTypeName(tensor.dtype), number);
      unit.alignment = 1 + Below(9);
      unit.tensors.push_back(tensor.name);
    }
    std::vector<FlatUnit> list;
    for (auto& [key, unit] : units) list.push_back(std::move(unit));
    ASSIGN_OR_RETURN(const FlatLayout flat, FlatParameterLayout(tensors_, list, static_cast<int>(1 + Below(9))));
    return flat.layout;
  }

  std::vector<int> Mesh() {
    std::vector<int> mesh;
    for (std::int64_t dims = 1 + Below(3); dims > 0; --dims) mesh.push_back(static_cast<int>(1 + Below(4)));
    return mesh;
  }

  Result<Layout> UsualMesh() {
    const std::vector<int> mesh = Mesh();
    int ranks = 1;
    for (const int size : mesh) ranks *= size;
    return FromSpec(fmt::format("mesh:{}", fmt::join(mesh, "x")), ranks);
  }

  Result<Layout> RandomMesh() {
    const std::vector<int> mesh = Mesh();
    std::vector<MeshTensor> placed;
    for (const TensorSpec& tensor : tensors_) {
      std::vector<Placement> placements(mesh.size());
      for (Placement& placement : placements) {
        if (Below(3) != 0) placement = Placement::Shard(static_cast<int>(Below(tensor.shape.size())));
      }
      // The last of two cuts of one dimension may come first.
      for (std::size_t m = 0; m + 1 < mesh.size(); ++m) {
        const bool last_two = m + 2 == mesh.size();
        if (!last_two || placements[m].kind != Placement::Kind::kShard || placements[m] != placements[m + 1]) continue;
        if (Below(2) == 0) placements[m] = Placement::StridedShard(placements[m].dim, mesh[m + 1]);
      }
      placed.push_back({.spec = tensor, .placements = placements});
    }
    return MeshLayout(placed, mesh);
  }

  Result<Layout> Megatron() {
    const std::int64_t tensor = 1 + Below(3);
    const std::int64_t pipeline = 1 + Below(2);
    const std::int64_t expert = config_.experts.count > 0 ? 1 + Below(3) : 1;
    const std::int64_t expert_tensor = 1 + Below(2);
    const std::int64_t ranks = tensor * expert * expert_tensor * pipeline;
    const std::int64_t chunks = pipeline > 1 && Below(3) == 0 ? 2 : 1;
    const bool uneven = pipeline > 1 && chunks == 1 && Below(3) == 0;
    return FromSpec(fmt::format("megatron:tp={},pp={},ep={},etp={},vocab={},vpp={}{}", tensor, pipeline, expert,
                                expert_tensor, 1 + Below(20), chunks, uneven ? ",first=1" : ""),
                    static_cast<int>(ranks));
  }

  RandomModels models_;
  const ModelConfig config_;
  std::vector<TensorSpec> tensors_;
};

// Memory for every local tensor of a trainer, with strides of any order and gaps; garbage where no row lies.
class TrainerMemory {
 public:
  TrainerMemory(Layout layout, std::mt19937_64& random) : layout_(std::move(layout)) {
    for (RankLayout& rank : layout_.ranks) {
      std::vector<std::vector<std::byte>>& memory = memory_.emplace_back();
      for (LocalTensor& tensor : rank.tensors) {
        std::int64_t elements = Box::Whole(tensor.shape).Elements();
        if (random() % 3 == 0) elements = Stride(tensor, random);
        memory.emplace_back(static_cast<std::size_t>(elements * ItemBytes(tensor.dtype)), std::byte{0x5a});
      }
    }
    for (std::size_t r = 0; r < layout_.ranks.size(); ++r) {
      for (const MapRow& row : layout_.ranks[r].rows) FillRow(r, row);
    }
  }

  TensorSource Source() const {
    TensorSource source(static_cast<int>(memory_.size()), layout_.tensors);
    for (std::size_t r = 0; r < memory_.size(); ++r) {
      std::vector<const void*> addresses;
      for (const auto& memory : memory_[r]) addresses.push_back(memory.data());
      const Status added = source.AddRank(static_cast<int>(r), layout_.ranks[r], addresses);
      EXPECT_TRUE(added.ok()) << added.ToString();
    }
    return source;
  }

 private:
  // Dimensions in any order in memory, each a little longer than its extent. Returns the elements.
  static std::int64_t Stride(LocalTensor& tensor, std::mt19937_64& random) {
    std::vector<int> order;
    for (int d = 0; d < tensor.shape.size(); ++d) order.push_back(d);
    std::ranges::shuffle(order, random);
    tensor.stride = Dims::Zeros(tensor.shape.size());
    std::int64_t step = 1;
    for (const int d : order) {
      tensor.stride[d] = step;
      step *= tensor.shape[d] + static_cast<std::int64_t>(random() % 3);
    }
    return step;
  }

  void FillRow(std::size_t rank, const MapRow& row) {
    const auto local = static_cast<std::size_t>(row.local);
    const LocalTensor& tensor = layout_.ranks[rank].tensors[local];
    const TensorSpec& spec = layout_.tensors[static_cast<std::size_t>(row.logical)];
    const Dims stride = tensor.stride.empty() ? RowMajorStride(tensor.shape) : tensor.stride;
    const std::vector<std::int64_t> logical = PositionsOf(row.logical_box, spec.shape);
    Dims index = Dims::Zeros(row.local_box.dims());
    for (const std::int64_t position : logical) {
      std::int64_t at = 0;
      for (int d = 0; d < index.size(); ++d) at += (row.local_box.offset[d] + index[d]) * stride[d];
      Store(BitsOf(spec.name, position, spec.dtype), spec.dtype, at, memory_[rank][local].data());
      for (int d = index.size() - 1; d >= 0 && ++index[d] == row.local_box.extent[d]; --d) index[d] = 0;
    }
  }

  Layout layout_;
  std::vector<std::vector<std::vector<std::byte>>> memory_;
};

// A logical tensor in its wire type.
std::vector<std::byte> WireBytes(const TensorSpec& held, const TensorSpec& wire) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(wire.Bytes()));
  for (std::int64_t e = 0; e < wire.Elements(); ++e) {
    Store(Convert(BitsOf(wire.name, e, held.dtype), held.dtype, wire.dtype), wire.dtype, e, bytes.data());
  }
  return bytes;
}

// What an engine rank has to hold of `tensor`: whole tensors, cut element by element.
std::string EngineBytes(const Layout& engine, const RankLayout& rank, std::int32_t tensor,
                        const std::vector<std::vector<std::byte>>& whole) {
  const LocalTensor& local = rank.tensors[static_cast<std::size_t>(tensor)];
  const auto item = static_cast<std::size_t>(ItemBytes(local.dtype));
  std::string bytes(static_cast<std::size_t>(local.Bytes()), '\xee');
  for (const MapRow& row : rank.rows) {
    if (row.local != tensor) continue;
    const std::vector<std::int64_t> to = PositionsOf(row.local_box, local.shape);
    std::vector<std::int64_t> from;
    if (row.logical != kFill) {
      from = PositionsOf(row.logical_box, engine.tensors[static_cast<std::size_t>(row.logical)].shape);
    }
    for (std::size_t i = 0; i < to.size(); ++i) {
      char* const at = bytes.data() + static_cast<std::size_t>(to[i]) * item;
      std::memset(at, 0, item);
      if (row.logical == kFill) continue;
      const auto& tensor_bytes = whole[static_cast<std::size_t>(row.logical)];
      std::memcpy(at, tensor_bytes.data() + static_cast<std::size_t>(from[i]) * item, item);
    }
  }
  return bytes;
}

Slice& RandomSlice(Plan& plan, std::mt19937_64& random) {
  std::vector<Slice>& slices = plan.buckets[random() % plan.buckets.size()].slices;
  return slices[random() % slices.size()];
}

// Every plan that lacks a slice, has one twice or has one at another place is refused.
void ExpectDamageIsRefused(const Plan& plan, const Layout& engine, std::mt19937_64& random) {
  Plan dropped = plan;
  std::vector<Slice>& slices = dropped.buckets[random() % dropped.buckets.size()].slices;
  slices.erase(slices.begin() + static_cast<std::ptrdiff_t>(random() % slices.size()));
  EXPECT_EQ(ProveCoverage(dropped, engine).reason(), "not_covered");

  Plan doubled = plan;
  std::vector<Slice>& twice = doubled.buckets[random() % doubled.buckets.size()].slices;
  twice.push_back(twice[random() % twice.size()]);
  EXPECT_EQ(ProveCoverage(doubled, engine).reason(), "covered_twice");

  Plan shifted = plan;
  Slice& slice = RandomSlice(shifted, random);
  const int d = static_cast<int>(random() % static_cast<unsigned>(slice.engine_box.dims()));
  slice.engine_box.offset[d] += random() % 2 == 0 ? 1 : -1;
  EXPECT_FALSE(ProveCoverage(shifted, engine).ok());
}

void CheckPlan(RandomTrainer& trainer, const Layout& sender, const Layout& engine, const Plan& plan) {
  const TrainerMemory memory(sender, trainer.random());
  const TensorSource source = memory.Source();
  Plan shuffled = plan;
  std::ranges::shuffle(shuffled.buckets, trainer.random());

  const CarriedOut result = CarryOut(shuffled, source, engine);

  std::map<std::string, DType> held;
  for (const TensorSpec& tensor : sender.tensors) held[tensor.name] = tensor.dtype;
  std::vector<std::vector<std::byte>> whole;
  std::int64_t bytes = 0;
  for (const TensorSpec& wire : engine.tensors) {
    whole.push_back(WireBytes({wire.name, held.at(wire.name), wire.shape}, wire));
    bytes += wire.Bytes();
  }
  EXPECT_EQ(result.counted_bytes, bytes);
  ASSERT_EQ(plan.tensors, engine.tensors);
  for (std::size_t t = 0; t < whole.size(); ++t) {
    EXPECT_EQ(result.sent[t], OracleDigest(plan.tensors[t], whole[t])) << plan.tensors[t].name;
    EXPECT_EQ(result.received[t], result.sent[t]) << plan.tensors[t].name;
  }
  for (std::size_t r = 0; r < engine.ranks.size(); ++r) {
    for (std::size_t t = 0; t < engine.ranks[r].tensors.size(); ++t) {
      EXPECT_EQ(result.memory[r][t], EngineBytes(engine, engine.ranks[r], static_cast<std::int32_t>(t), whole))
          << "engine rank " << r << " " << engine.ranks[r].tensors[t].name;
    }
  }
}

TEST(RandomTrainerTest, AnyTrainerReachesAnyEngineAndNoDamagedPlanPasses) {
  int planned = 0;
  for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed=" << seed);
    RandomTrainer trainer(seed);
    const Result<EngineLayout> engine = trainer.Engine();
    if (!engine.ok()) continue;  // sizes that do not divide: tests/unit/model looks at what is refused
    const Result<Layout> sender = trainer.Trainer();
    if (!sender.ok()) {
      const std::string reason = sender.status().reason();
      EXPECT_TRUE(reason == "does_not_divide" || reason == "bad_trainer_layout") << sender.status().ToString();
      continue;
    }

    const auto plan = MakePlan(*sender, engine->layout, {.bucket_bytes = 4096 + 64 * trainer.Below(99), .ignore = {}});

    ASSERT_TRUE(plan.ok()) << trainer.config().Description() << ": " << plan.status().ToString();
    CheckPlan(trainer, *sender, engine->layout, *plan);
    ExpectDamageIsRefused(*plan, engine->layout, trainer.random());
    if (testing::Test::HasFailure()) return;
    ++planned;
  }
  EXPECT_GT(planned, 400);
}

// Rank 0's way to full tensors, with all ranks in one process: what it has of every window.
void CheckGather(RandomTrainer& trainer, const Layout& sender, const std::vector<TensorSpec>& wire) {
  const TrainerMemory memory(sender, trainer.random());
  const TensorSource source = memory.Source();
  PlanCache plans;
  const PlanOptions options{
      .bucket_bytes = 4096 + 64 * trainer.Below(99), .ignore = {}, .window_bytes = 1 + trainer.Below(1 << 15)};
  const auto plan = GatherPlan::Make(sender, wire, options, plans);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  TensorGatherer gatherer(*plan, source, /*connection=*/nullptr,
                          Deadline::After(Clock::Real(), std::chrono::minutes(2)), Clock::Real());

  std::int64_t largest = 0;
  for (std::size_t t = 0; t < wire.size(); ++t) {
    const auto tensor = static_cast<std::int32_t>(t);
    const auto window = gatherer.Take(plan->WindowOf(tensor), {});
    ASSERT_TRUE(window.ok()) << window.status().ToString();
    const auto held = std::ranges::find(sender.tensors, wire[t].name, &TensorSpec::name);
    const std::vector<std::byte> expected = WireBytes(*held, wire[t]);
    EXPECT_EQ(std::memcmp((*window)->Tensor(tensor), expected.data(), expected.size()), 0) << wire[t].name;
    EXPECT_EQ(gatherer.DigestOf(tensor), OracleDigest(wire[t], expected)) << wire[t].name;
    largest = std::max(largest, wire[t].Bytes());
  }
  // A window may end each of its tensors at a multiple of 64.
  EXPECT_LE(gatherer.window_bytes(), std::max(largest, options.window_bytes) + 64 * std::ssize(wire));
}

TEST(RandomTrainerTest, AnyTrainerIsGatheredWindowByWindow) {
  int gathered = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed=" << seed);
    RandomTrainer trainer(seed);
    const Result<EngineLayout> engine = trainer.Engine();
    const Result<Layout> sender = trainer.Trainer();
    if (!engine.ok() || !sender.ok()) continue;  // as above

    CheckGather(trainer, *sender, engine->layout.tensors);

    if (testing::Test::HasFailure()) return;
    ++gathered;
  }
  EXPECT_GT(gathered, 60);
}

}  // namespace
}  // namespace bascule
