// Gate and up of a feed-forward network, stored by the trainer in five ways: the map says which, and the engine gets
// the same bytes of each.
#include <gtest/gtest.h>

#include <cstring>

#include "bridge/plan/planner.h"
#include "model/engine_layout.h"
#include "tests/support/carry_out/carry_out.h"
#include "trainer_side/tensor_source.h"

namespace bascule {
namespace {

constexpr std::int64_t kRows = 12;
constexpr std::int64_t kColumns = 4;
constexpr int kEngineRanks = 2;
const std::vector<TensorSpec> kTensors = {{"gate", DType::kF32, {kRows, kColumns}},
                                          {"up", DType::kF32, {kRows, kColumns}}};

float ValueOf(int tensor, std::int64_t row, std::int64_t column) {
  return static_cast<float>(1000 * tensor + 10 * row + column);
}

// One fused matrix whose row i is row `rows[i].second` of tensor `rows[i].first`.
using FusedRows = std::vector<std::pair<int, std::int64_t>>;

std::vector<float> MemoryOf(const FusedRows& rows) {
  std::vector<float> memory;
  for (const auto& [tensor, row] : rows) {
    for (std::int64_t column = 0; column < kColumns; ++column) memory.push_back(ValueOf(tensor, row, column));
  }
  return memory;
}

MapRow RowsAt(std::int64_t local_row, std::int32_t tensor, std::int64_t first, std::int64_t count) {
  return {.local = 0,
          .local_box = {{local_row, 0}, {count, kColumns}},
          .logical = tensor,
          .logical_box = {{first, 0}, {count, kColumns}}};
}

// Engine ranks hold [their rows of gate; their rows of up].
Layout EngineOf() {
  Layout engine{.tensors = kTensors, .ranks = std::vector<RankLayout>(kEngineRanks)};
  constexpr std::int64_t kShare = kRows / kEngineRanks;
  for (std::int64_t rank = 0; rank < kEngineRanks; ++rank) {
    RankLayout& layout = engine.ranks[static_cast<std::size_t>(rank)];
    layout.tensors = {{.name = "gate_up", .dtype = DType::kF32, .shape = {2 * kShare, kColumns}}};
    layout.rows = {RowsAt(0, 0, rank * kShare, kShare), RowsAt(kShare, 1, rank * kShare, kShare)};
  }
  return engine;
}

void ExpectEngineHoldsItsRows(const TensorSource& source) {
  const Layout engine = EngineOf();
  const auto plan = MakePlan(source.layout(), engine, {});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();

  const CarriedOut result = CarryOut(*plan, source, engine);

  constexpr std::int64_t kShare = kRows / kEngineRanks;
  for (std::int64_t rank = 0; rank < kEngineRanks; ++rank) {
    FusedRows rows;
    for (const int tensor : {0, 1}) {
      for (std::int64_t i = 0; i < kShare; ++i) rows.emplace_back(tensor, rank * kShare + i);
    }
    const std::vector<float> want = MemoryOf(rows);
    const std::string& got = result.memory[static_cast<std::size_t>(rank)][0];
    ASSERT_EQ(got.size(), want.size() * sizeof(float));
    EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size()), 0) << "engine rank " << rank;
  }
}

LocalTensor Fused(std::int64_t rows) {
  return {.name = "gate_up", .dtype = DType::kF32, .shape = {rows, kColumns}, .stride = {}};
}

FusedRows Whole(int tensor) {
  FusedRows rows;
  for (std::int64_t row = 0; row < kRows; ++row) rows.emplace_back(tensor, row);
  return rows;
}

TEST(DeclaredOrderTest, GateAndUpByThemselves) {
  const std::vector<float> gate = MemoryOf(Whole(0));
  const std::vector<float> up = MemoryOf(Whole(1));
  TensorSource source(1);
  ASSERT_TRUE(source.Add(0, {.tensor = kTensors[1], .box = Box::Whole({kRows, kColumns}), .data = up.data()}).ok());
  ASSERT_TRUE(source.Add(0, {.tensor = kTensors[0], .box = Box::Whole({kRows, kColumns}), .data = gate.data()}).ok());

  ExpectEngineHoldsItsRows(source);
}

TEST(DeclaredOrderTest, EitherMayBeFirst) {
  for (const int first : {0, 1}) {
    FusedRows rows = Whole(first);
    const FusedRows second = Whole(1 - first);
    rows.insert(rows.end(), second.begin(), second.end());
    const std::vector<float> memory = MemoryOf(rows);
    TensorSource source(1, kTensors);
    ASSERT_TRUE(source
                    .AddLocal(0, Fused(2 * kRows), {RowsAt(0, first, 0, kRows), RowsAt(kRows, 1 - first, 0, kRows)},
                              memory.data())
                    .ok());

    ExpectEngineHoldsItsRows(source);
  }
}

TEST(DeclaredOrderTest, RowsInTurnAreTwoStridedViews) {
  FusedRows rows;
  for (std::int64_t row = 0; row < kRows; ++row) rows.insert(rows.end(), {{0, row}, {1, row}});
  const std::vector<float> memory = MemoryOf(rows);
  TensorSource source(1);
  for (const int tensor : {0, 1}) {
    ASSERT_TRUE(source
                    .Add(0, {.tensor = kTensors[static_cast<std::size_t>(tensor)],
                             .box = Box::Whole({kRows, kColumns}),
                             .data = memory.data() + tensor * kColumns,
                             .stride = {2 * kColumns, 1}})
                    .ok());
  }

  ExpectEngineHoldsItsRows(source);
}

TEST(DeclaredOrderTest, EveryTrainerRankItsOwnGateThenItsOwnUp) {
  constexpr std::int64_t kTrainerRanks = 3;
  constexpr std::int64_t kShare = kRows / kTrainerRanks;
  TensorSource source(kTrainerRanks, kTensors);
  std::vector<std::vector<float>> memory;
  for (std::int64_t rank = 0; rank < kTrainerRanks; ++rank) {
    FusedRows rows;
    for (const int tensor : {0, 1}) {
      for (std::int64_t i = 0; i < kShare; ++i) rows.emplace_back(tensor, rank * kShare + i);
    }
    memory.push_back(MemoryOf(rows));
    ASSERT_TRUE(source
                    .AddLocal(static_cast<int>(rank), Fused(2 * kShare),
                              {RowsAt(0, 0, rank * kShare, kShare), RowsAt(kShare, 1, rank * kShare, kShare)},
                              memory.back().data())
                    .ok());
  }

  ExpectEngineHoldsItsRows(source);
}

TEST(DeclaredOrderTest, AFusedTensorThatNobodyDeclaresIsRefused) {
  const std::vector<float> memory(2 * kRows * kColumns);
  TensorSource source(1);
  ASSERT_TRUE(source
                  .Add(0, {.tensor = {"gate_up", DType::kF32, {2 * kRows, kColumns}},
                           .box = Box::Whole({2 * kRows, kColumns}),
                           .data = memory.data()})
                  .ok());

  const auto plan = MakePlan(source.layout(), EngineOf(), {});

  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.status().reason(), "tensor_missing");
}

}  // namespace
}  // namespace bascule
