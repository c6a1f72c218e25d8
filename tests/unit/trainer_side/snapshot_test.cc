#include "trainer_side/snapshot.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "device/host/host_memory.h"
#include "tests/support/scripted_engine/sharded_trainer.h"

namespace bascule {
namespace {

const Deadline kNoEnd = Deadline::At(TimePoint::max());

std::vector<std::byte> BytesOf(const WeightSnapshot& snapshot, int rank, int tensor) {
  const LocalTensor& local =
      snapshot.layout().ranks[static_cast<std::size_t>(rank)].tensors[static_cast<std::size_t>(tensor)];
  const std::byte* base = snapshot.Base(rank, tensor);
  return {base, base + local.Bytes()};
}

TEST(WeightSnapshotTest, HoldsEveryShardInTheWireTypesAfterTheTrainerIsGone) {
  std::vector<std::vector<std::byte>> want;
  std::unique_ptr<WeightSnapshot> snapshot;
  const std::vector<TensorSpec> wire = ShardedTrainer::WireTensors();
  ShardedTrainer trainer(/*trainer_ranks=*/2);
  const TensorSource source = trainer.Source();
  want = trainer.WireBytes();

  auto created = WeightSnapshot::Create(source, wire, HostMemory());
  ASSERT_TRUE(created.ok());
  ASSERT_TRUE((*created)->Copy(kNoEnd).ok());
  trainer.TakeMemoryAway();

  // Cut along the first dimension, the ranks' shards follow each other. Rank 1 has no part of the scalar.
  for (std::size_t t = 0; t < wire.size(); ++t) {
    std::vector<std::byte> got = BytesOf(**created, 0, static_cast<int>(t));
    if (!wire[t].shape.empty()) {
      const int second = static_cast<int>(t) - (t > 4 ? 1 : 0);
      const std::vector<std::byte> rest = BytesOf(**created, 1, second);
      got.insert(got.end(), rest.begin(), rest.end());
    }
    EXPECT_EQ(got, want[t]) << wire[t].name;
  }
}

TEST(WeightSnapshotTest, ASecondCopyUsesTheSameMemory) {
  ShardedTrainer trainer(/*trainer_ranks=*/1);
  const TensorSource source = trainer.Source();
  auto snapshot = WeightSnapshot::Create(source, ShardedTrainer::WireTensors(), HostMemory());
  ASSERT_TRUE(snapshot.ok());
  ASSERT_TRUE((*snapshot)->Copy(kNoEnd).ok());
  const std::byte* first = (*snapshot)->Base(0, 0);

  trainer.Fill(99);
  ASSERT_TRUE((*snapshot)->Copy(kNoEnd).ok());

  EXPECT_EQ((*snapshot)->Base(0, 0), first);
  EXPECT_EQ(BytesOf(**snapshot, 0, 0), trainer.WireBytes()[0]);
}

TEST(WeightSnapshotTest, StridedShardsBecomeDenseWithAndWithoutConversion) {
  const std::array<float, 6> columns = {1, 4, 2, 5, 3, 6};  // a 2x3 matrix, column after column
  TensorSource source(1);
  ASSERT_TRUE(source
                  .Add(0, {.tensor = {"kept", DType::kF32, {2, 3}},
                           .box = Box::Whole({2, 3}),
                           .data = columns.data(),
                           .stride = {1, 2}})
                  .ok());
  ASSERT_TRUE(source
                  .Add(0, {.tensor = {"cast", DType::kF32, {2, 3}},
                           .box = Box::Whole({2, 3}),
                           .data = columns.data(),
                           .stride = {1, 2}})
                  .ok());

  auto snapshot =
      WeightSnapshot::Create(source, {{"cast", DType::kBf16, {2, 3}}, {"kept", DType::kF32, {2, 3}}}, HostMemory());
  ASSERT_TRUE(snapshot.ok());
  ASSERT_TRUE((*snapshot)->Copy(kNoEnd).ok());

  for (int i = 0; i < 6; ++i) {
    float kept = 0;
    std::memcpy(&kept, (*snapshot)->Base(0, 0) + 4 * i, 4);
    std::uint32_t cast = 0;
    std::memcpy(reinterpret_cast<std::byte*>(&cast) + 2, (*snapshot)->Base(0, 1) + 2 * i, 2);
    float widened = 0;
    std::memcpy(&widened, &cast, 4);
    EXPECT_EQ(kept, static_cast<float>(i + 1));
    EXPECT_EQ(widened, static_cast<float>(i + 1));
  }
  EXPECT_TRUE((*snapshot)->layout().ranks[0].tensors[0].stride.empty());
}

TEST(WeightSnapshotTest, TensorsThatNobodyTakesAreNotCopied) {
  ShardedTrainer trainer(/*trainer_ranks=*/1);
  const TensorSource source = trainer.Source();

  auto snapshot = WeightSnapshot::Create(source, {ShardedTrainer::WireTensors()[3]}, HostMemory());
  ASSERT_TRUE(snapshot.ok());
  ASSERT_TRUE((*snapshot)->Copy(kNoEnd).ok());

  EXPECT_EQ((*snapshot)->Base(0, 0), nullptr);
  EXPECT_EQ(BytesOf(**snapshot, 0, 3), trainer.WireBytes()[3]);
}

TEST(WeightSnapshotTest, AFusedTensorIsCopiedOnceAndKeepsItsTypeWhereItsPartsHaveSeveralWireTypes) {
  const std::array<float, 4> fused = {1, 2, 3, 4};
  const std::vector<TensorSpec> tensors = {{"a", DType::kF32, {2}}, {"b", DType::kF32, {2}}};
  const std::vector<MapRow> rows = {{.local = 0, .local_box = {{0}, {2}}, .logical = 0, .logical_box = {{0}, {2}}},
                                    {.local = 0, .local_box = {{2}, {2}}, .logical = 1, .logical_box = {{0}, {2}}}};
  TensorSource source(1, tensors);
  ASSERT_TRUE(source.AddLocal(0, {.name = "ab", .dtype = DType::kF32, .shape = {4}}, rows, fused.data()).ok());

  auto mixed = WeightSnapshot::Create(source, {{"a", DType::kBf16, {2}}, {"b", DType::kF32, {2}}}, HostMemory());
  auto cast = WeightSnapshot::Create(source, {{"a", DType::kBf16, {2}}, {"b", DType::kBf16, {2}}}, HostMemory());
  ASSERT_TRUE(mixed.ok() && cast.ok());
  ASSERT_TRUE((*mixed)->Copy(kNoEnd).ok());
  ASSERT_TRUE((*cast)->Copy(kNoEnd).ok());

  const std::span<const std::byte> all = std::as_bytes(std::span(fused));
  EXPECT_EQ(BytesOf(**mixed, 0, 0), std::vector<std::byte>(all.begin(), all.end()));
  EXPECT_EQ((*cast)->layout().ranks[0].tensors[0].dtype, DType::kBf16);
  std::vector<std::byte> upper;
  for (std::size_t i = 0; i < fused.size(); ++i) upper.insert(upper.end(), &all[4 * i + 2], &all[4 * i + 3] + 1);
  EXPECT_EQ(BytesOf(**cast, 0, 0), upper);
}

}  // namespace
}  // namespace bascule
