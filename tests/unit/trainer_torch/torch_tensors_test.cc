// Real torch tensors through a publisher into an engine: what arrives is what torch itself makes of the whole tensors.
#include "trainer_side/torch/torch_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bridge/session/loopback/loopback_control.h"
#include "bridge/transport/loopback/dialer.h"
#include "bridge/transport/loopback/network.h"
#include "tests/support/scripted_engine/scripted_engine.h"
#include "trainer_side/weight_publisher.h"

#include <torch/torch.h>  // after ours: it brings a CHECK of its own

namespace bascule {
namespace {

using testing::HasSubstr;

class TorchTensorsTest : public testing::Test {
 protected:
  TorchTensorsTest() { torch::manual_seed(7); }

  // An engine of one rank that keeps `tensors`, and a publisher of `source` to it.
  void Connect(std::vector<TensorSpec> tensors, TensorSource source) {
    engine_ = std::make_unique<ScriptedEngine>(control_, network_, "engine", PlainLayout(std::move(tensors)));
    WeightPublisherOptions options;
    options.replicas = {"engine"};
    options.control = &control_;
    options.transports = {&dialer_};
    options.connect_timeout = options.deadline;
    auto made = WeightPublisher::Create(options, std::move(source));
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    publisher_ = std::move(*made);
  }

  Status Publish() {
    const auto handle = publisher_->Publish({});
    if (!handle.ok()) return handle.status();
    const auto report = (*handle)->WaitCommitted(Deadline::After(Clock::Real(), std::chrono::seconds(100)));
    return report.ok() ? report->replicas[0].status : report.status();
  }

  // Tensor `index` of the engine is `want`, bit for bit.
  void ExpectLive(int index, const torch::Tensor& want) const {
    const torch::Tensor dense = want.detach().contiguous();
    const auto* const bytes = static_cast<const std::byte*>(dense.data_ptr());
    EXPECT_EQ(engine_->Live(0, index), std::vector<std::byte>(bytes, bytes + dense.nbytes())) << "tensor " << index;
  }

  LoopbackControl control_{Clock::Real()};
  LoopbackNetwork network_;
  LoopbackDialer dialer_{network_, Clock::Real()};
  std::unique_ptr<ScriptedEngine> engine_;
  std::unique_ptr<WeightPublisher> publisher_;
};

// Numbers of every size, zeros, infinities and denormals among them.
torch::Tensor RandomMasters(at::IntArrayRef shape) {
  torch::Tensor tensor = torch::randn(shape) * torch::exp(torch::randn(shape) * 30);
  torch::Tensor flat = tensor.view({-1});
  const std::vector<float> special = {0.0F, -0.0F, 1e-40F, -1e-42F, INFINITY, -INFINITY, 3.4e38F, 1.00390625F};
  for (std::size_t i = 0; i < special.size() && static_cast<std::int64_t>(i) < flat.numel(); ++i) flat[i] = special[i];
  return tensor;
}

TEST_F(TorchTensorsTest, StridedViewsArriveAsTorchConvertsThem) {
  const torch::Tensor storage = RandomMasters({7, 9, 5});
  const torch::Tensor turned = storage.permute({2, 0, 1});                             // [5, 7, 9]
  const torch::Tensor window = storage.narrow(0, 2, 3).narrow(1, 1, 8).select(2, 3);   // [3, 8], offset and gaps
  const torch::Tensor every_second = storage.slice(1, 0, 9, 2).flip({}).select(0, 4);  // [5, 5]
  const torch::Tensor repeated = storage.select(0, 1).narrow(0, 3, 1).expand({4, 5});  // stride 0
  TorchTensors tensors;
  ASSERT_TRUE(tensors.AddShard({.name = "turned", .shape = {5, 7, 9}}, turned).ok());
  ASSERT_TRUE(tensors.AddShard({.name = "window", .shape = {3, 8}}, window).ok());
  ASSERT_TRUE(tensors.AddShard({.name = "every_second", .shape = {5, 5}}, every_second).ok());
  ASSERT_TRUE(tensors.AddShard({.name = "repeated", .shape = {4, 5}}, repeated).ok());
  TensorSource source(1);
  ASSERT_TRUE(tensors.AddTo(source, 0).ok());

  Connect({{"turned", DType::kBf16, {5, 7, 9}},
           {"window", DType::kBf16, {3, 8}},
           {"every_second", DType::kF32, {5, 5}},
           {"repeated", DType::kBf16, {4, 5}}},
          std::move(source));
  const Status status = Publish();

  ASSERT_TRUE(status.ok()) << status.ToString();
  ExpectLive(0, turned.to(torch::kBFloat16));
  ExpectLive(1, window.to(torch::kBFloat16));
  ExpectLive(2, every_second);
  ExpectLive(3, repeated.to(torch::kBFloat16));
}

TEST_F(TorchTensorsTest, EveryTypeIsKeptWhereTheEngineKeepsIt) {
  const std::vector<std::pair<torch::ScalarType, DType>> types = {
      {torch::kBool, DType::kBool},  {torch::kUInt8, DType::kU8},    {torch::kInt8, DType::kI8},
      {torch::kInt16, DType::kI16},  {torch::kFloat16, DType::kF16}, {torch::kBFloat16, DType::kBf16},
      {torch::kInt32, DType::kI32},  {torch::kFloat32, DType::kF32}, {torch::kInt64, DType::kI64},
      {torch::kFloat64, DType::kF64}};
  std::vector<torch::Tensor> held;
  std::vector<TensorSpec> wire;
  TorchTensors tensors;
  for (const auto& [torch_type, dtype] : types) {
    held.push_back((torch::rand({3, 4}) * 100).to(torch_type));
    wire.push_back({std::string(DTypeName(dtype)), dtype, {3, 4}});
    ASSERT_TRUE(tensors.AddShard({.name = wire.back().name, .shape = {3, 4}}, held.back()).ok());
  }
  held.push_back(torch::tensor(2.5F).requires_grad_(true));  // a scalar that is trained
  wire.push_back({"scalar", DType::kF32, {}});
  ASSERT_TRUE(tensors.AddShard({.name = "scalar", .shape = {}}, held.back()).ok());
  TensorSource source(1);
  ASSERT_TRUE(tensors.AddTo(source, 0).ok());

  Connect(wire, std::move(source));
  const Status status = Publish();

  ASSERT_TRUE(status.ok()) << status.ToString();
  for (std::size_t t = 0; t < held.size(); ++t) ExpectLive(static_cast<int>(t), held[t]);
}

TEST_F(TorchTensorsTest, AConversionThatTheBridgeDoesNotMakeIsRefusedByThePlanWithTheName) {
  const torch::Tensor doubles = torch::rand({2, 2}, torch::kFloat64);
  TorchTensors tensors;
  ASSERT_TRUE(tensors.AddShard({.name = "doubles", .shape = {2, 2}}, doubles).ok());
  TensorSource source(1);
  ASSERT_TRUE(tensors.AddTo(source, 0).ok());

  Connect({{"doubles", DType::kBf16, {2, 2}}}, std::move(source));
  const Status status = Publish();

  EXPECT_EQ(status.reason(), "dtype_mismatch");
  EXPECT_THAT(status.message(), HasSubstr("doubles"));
}

// C-071.
// A mesh of two data-parallel by two tensor-parallel ranks; torch.chunk makes the shards. 7 and 5 divide by nothing.
TEST_F(TorchTensorsTest, ShardsOfAMeshInStridedOrderMakeTheWhole) {
  const std::vector<int> mesh = {2, 2};
  const torch::Tensor rows = RandomMasters({7, 3});     // tensor-parallel by rows, then FSDP cuts what each rank has
  const torch::Tensor columns = RandomMasters({5, 4});  // tensor-parallel by columns, FSDP by rows
  const torch::Tensor tiny = RandomMasters({1});        // FSDP: the second data-parallel rank has nothing
  TensorSource source(4);
  for (int rank = 0; rank < 4; ++rank) {
    const auto part = [&](const torch::Tensor& of, int dim, int index) {
      const auto chunks = of.chunk(2, dim);
      return static_cast<std::size_t>(index) < chunks.size() ? chunks[static_cast<std::size_t>(index)]
                                                             : torch::Tensor();
    };
    const int data = rank / 2;
    const int tensor = rank % 2;
    TorchTensors tensors;
    ASSERT_TRUE(tensors
                    .AddShard({.name = "rows",
                               .shape = {7, 3},
                               .mesh = mesh,
                               .rank = rank,
                               .placements = {Placement::StridedShard(0, 2), Placement::Shard(0)}},
                              part(part(rows, 0, tensor), 0, data))
                    .ok());
    ASSERT_TRUE(tensors
                    .AddShard({.name = "columns",
                               .shape = {5, 4},
                               .mesh = mesh,
                               .rank = rank,
                               .placements = {Placement::Shard(0), Placement::Shard(-1)}},
                              part(part(columns, 1, tensor), 0, data))
                    .ok());
    ASSERT_TRUE(tensors
                    .AddShard({.name = "tiny",
                               .shape = {1},
                               .mesh = mesh,
                               .rank = rank,
                               .placements = {Placement::Shard(0), Placement::Replicate()}},
                              part(tiny, 0, data))
                    .ok());
    ASSERT_TRUE(tensors.AddTo(source, rank).ok());
  }

  Connect({{"rows", DType::kBf16, {7, 3}}, {"columns", DType::kBf16, {5, 4}}, {"tiny", DType::kF32, {1}}},
          std::move(source));
  const Status status = Publish();

  ASSERT_TRUE(status.ok()) << status.ToString();
  ExpectLive(0, rows.to(torch::kBFloat16));
  ExpectLive(1, columns.to(torch::kBFloat16));
  ExpectLive(2, tiny);
}

// As FSDP makes them: flatten, concatenate, pad, cut evenly. 12 + 1 + 10 elements over 4 ranks are 6 each.
TEST_F(TorchTensorsTest, ShardsOfAFlatParameterMakeItsTensors) {
  const std::vector<torch::Tensor> whole = {RandomMasters({3, 4}), RandomMasters({1}), RandomMasters({2, 5})};
  const torch::Tensor padding = torch::full({1}, NAN);
  const torch::Tensor flat = torch::cat({whole[0].flatten(), whole[1], whole[2].flatten(), padding});
  TensorSource source(4);
  for (int rank = 0; rank < 4; ++rank) {
    TorchTensors tensors;
    const Status added = tensors.AddFlat(
        {.unit = "_flat_param", .parts = {{"a", {3, 4}}, {"b", {1}}, {"c", {2, 5}}}, .ranks = 4, .rank = rank},
        flat.narrow(0, rank * 6, 6));
    ASSERT_TRUE(added.ok()) << added.ToString();
    ASSERT_TRUE(tensors.AddTo(source, rank).ok());
  }

  Connect({{"a", DType::kBf16, {3, 4}}, {"b", DType::kBf16, {1}}, {"c", DType::kF32, {2, 5}}}, std::move(source));
  const Status status = Publish();

  ASSERT_TRUE(status.ok()) << status.ToString();
  ExpectLive(0, whole[0].to(torch::kBFloat16));
  ExpectLive(1, whole[1].to(torch::kBFloat16));
  ExpectLive(2, whole[2]);
}

TEST_F(TorchTensorsTest, TheStorageLivesUntilThePublisherIsGone) {
  bool freed = false;
  std::vector<float> memory = {1, 2, 3, 4};
  TensorSource source(1);
  {
    TorchTensors tensors;
    const torch::Tensor owner = torch::from_blob(memory.data(), {4}, [&freed](void*) { freed = true; });
    ASSERT_TRUE(tensors.AddShard({.name = "w", .shape = {2}}, owner.narrow(0, 1, 2)).ok());
    ASSERT_TRUE(tensors.AddTo(source, 0).ok());
  }

  Connect({{"w", DType::kF32, {2}}}, std::move(source));
  const Status status = Publish();

  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_FALSE(freed);
  ExpectLive(0, torch::tensor({2.0F, 3.0F}));
  publisher_.reset();
  EXPECT_TRUE(freed);
}

// C-023.
TEST_F(TorchTensorsTest, AnOptimizerStepIsPublishedAndATensorThatMovedIsNoticed) {
  torch::Tensor weight = RandomMasters({4, 3}).nan_to_num(0, 1, -1).clamp(-1, 1).requires_grad_(true);
  TorchTensors tensors;
  ASSERT_TRUE(tensors.AddShard({.name = "w", .shape = {4, 3}}, weight).ok());
  TensorSource source(1);
  ASSERT_TRUE(tensors.AddTo(source, 0).ok());
  Connect({{"w", DType::kBf16, {4, 3}}}, std::move(source));
  torch::optim::AdamW optimizer({weight}, 0.1);
  (weight * weight).sum().backward();
  optimizer.step();

  ASSERT_TRUE(tensors.CheckInPlace().ok());
  const Status status = Publish();
  ASSERT_TRUE(status.ok()) << status.ToString();
  ExpectLive(0, weight.to(torch::kBFloat16));

  weight.set_data(weight.detach().clone());
  EXPECT_EQ(tensors.CheckInPlace().reason(), "tensor_moved");
  EXPECT_THAT(tensors.CheckInPlace().message(), HasSubstr("tensor=w"));
}

TEST_F(TorchTensorsTest, WhatHasNoPlainElementsInHostMemoryIsRefusedByName) {
  const torch::Tensor good = torch::rand({2, 2});
  const torch::Tensor negative = torch::imag(torch::rand({2, 2}, torch::kComplexFloat).conj());
  const std::vector<std::pair<torch::Tensor, std::string>> bad = {
      {torch::Tensor(), "bad_shard"},
      {torch::rand({2, 3}), "bad_shard"},
      {torch::rand({4}), "bad_shard"},
      {torch::rand({1, 1, 1, 1, 1, 1, 1, 2, 2}), "bad_shard"},
      {good.to_sparse(), "not_strided"},
      {torch::empty({2, 2}, torch::kMeta), "not_in_host_memory"},
      {negative, "lazy_view"},
      {torch::rand({2, 2}, torch::kComplexFloat), "unsupported_dtype"},
      {torch::quantize_per_tensor(good, 0.1, 0, torch::kQInt8), "unsupported_dtype"}};
  ASSERT_TRUE(negative.is_neg());
  TorchTensors tensors;

  for (const auto& [tensor, reason] : bad) {
    const Status status = tensors.AddShard({.name = "layer.w", .shape = {2, 2}}, tensor);

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << reason;
    EXPECT_EQ(status.reason(), reason) << status.message();
    EXPECT_THAT(status.message(), HasSubstr("tensor=layer.w"));
  }
  TensorSource source(1);
  ASSERT_TRUE(tensors.AddTo(source, 0).ok());
  EXPECT_TRUE(source.layout().tensors.empty());
}

TEST_F(TorchTensorsTest, PlacementsThatCannotBeAreRefusedByName) {
  const torch::Tensor local = torch::rand({2, 2});
  TorchTensors tensors;

  const Status partial = tensors.AddShard(
      {.name = "w", .shape = {2, 2}, .mesh = {2}, .rank = 0, .placements = {Placement::Partial()}}, local);
  const Status no_such_rank = tensors.AddShard(
      {.name = "w", .shape = {2, 2}, .mesh = {2}, .rank = 2, .placements = {Placement::Replicate()}}, local);

  EXPECT_EQ(partial.reason(), "partial_placement");
  EXPECT_THAT(partial.message(), HasSubstr("tensor=w"));
  EXPECT_EQ(no_such_rank.reason(), "bad_trainer_layout");
}

TEST_F(TorchTensorsTest, AFlatShardOfAnotherSizeOrFormIsRefused) {
  const FlatPlacement placement{.unit = "flat", .parts = {{"a", {3}}, {"b", {2}}}, .ranks = 2, .rank = 1};
  FlatPlacement no_such_rank = placement;
  no_such_rank.rank = 2;
  TorchTensors tensors;

  for (const torch::Tensor& bad : {torch::rand({2}), torch::rand({1, 3}), torch::rand({6}).slice(0, 0, 6, 2)}) {
    const Status status = tensors.AddFlat(placement, bad);

    EXPECT_EQ(status.reason(), "bad_shard");
    EXPECT_THAT(status.message(), HasSubstr("a flat shard is 3 contiguous elements"));
  }
  EXPECT_EQ(tensors.AddFlat(no_such_rank, torch::rand({3})).reason(), "bad_trainer_layout");
  EXPECT_EQ(tensors.AddFlat(placement, torch::rand({3}).to_sparse()).reason(), "not_strided");
}

}  // namespace
}  // namespace bascule
