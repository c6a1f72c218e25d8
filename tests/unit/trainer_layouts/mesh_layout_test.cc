#include "trainer_side/layouts/mesh_layout.h"

#include <gtest/gtest.h>

#include <numeric>

namespace bascule {
namespace {

using Rows = std::vector<std::int64_t>;

// torch.chunk of a list of row numbers, with empty lists behind the last.
std::vector<Rows> Chunk(const Rows& rows, int parts) {
  const std::size_t size = (rows.size() + static_cast<std::size_t>(parts) - 1) / static_cast<std::size_t>(parts);
  std::vector<Rows> chunks(static_cast<std::size_t>(parts));
  for (std::size_t i = 0; i < rows.size(); ++i) chunks[i / size].push_back(rows[i]);
  return chunks;
}

Rows Range(std::int64_t count) {
  Rows rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// The indices of dimension `dim` that a rank holds.
Rows Held(const Dims& shape, int dim, const std::vector<int>& mesh, const std::vector<Placement>& placements,
          int rank) {
  const Result<Box> box = ShardOfRank(shape, mesh, placements, rank);
  EXPECT_TRUE(box.ok()) << box.status().ToString();
  Rows rows = Range(box->extent[dim]);
  for (std::int64_t& row : rows) row += box->offset[dim];
  return rows;
}

// C-071.
TEST(MeshLayoutTest, AStridedShardCutsAfterTheOneToItsRight) {
  const std::vector<Placement> strided = {Placement::StridedShard(0, 2), Placement::Shard(0)};
  const std::vector<Placement> in_order = {Placement::Shard(0), Placement::Shard(0)};
  const Rows by_tensor_first[] = {{0, 1}, {4, 5}, {2, 3}, {6, 7}};
  const Rows by_data_first[] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}};

  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(Held({8, 3}, 0, {2, 2}, strided, rank), by_tensor_first[rank]);
    EXPECT_EQ(Held({8, 3}, 0, {2, 2}, in_order, rank), by_data_first[rank]);
  }
}

// C-071.
TEST(MeshLayoutTest, AnyRowsOverAnyMeshAreChunksOfChunks) {
  for (std::int64_t rows = 0; rows <= 17; ++rows) {
    for (int tensor = 1; tensor <= 4; ++tensor) {
      for (int data = 1; data <= 4; ++data) {
        for (const int dim : {0, 1}) {
          const Dims shape = dim == 0 ? Dims{rows, 3} : Dims{3, rows};
          for (int d = 0; d < data; ++d) {
            for (int t = 0; t < tensor; ++t) {
              SCOPED_TRACE(testing::Message() << rows << " rows, data " << d << "/" << data << ", tensor " << t << "/"
                                              << tensor << ", dim " << dim);
              const auto at_d = static_cast<std::size_t>(d);
              const auto at_t = static_cast<std::size_t>(t);
              const int rank = d * tensor + t;
              EXPECT_EQ(
                  Held(shape, dim, {data, tensor}, {Placement::StridedShard(dim, tensor), Placement::Shard(dim)}, rank),
                  Chunk(Chunk(Range(rows), tensor)[at_t], data)[at_d]);
              EXPECT_EQ(Held(shape, dim, {data, tensor}, {Placement::Shard(dim), Placement::Shard(dim - 2)}, rank),
                        Chunk(Chunk(Range(rows), data)[at_d], tensor)[at_t]);
            }
          }
        }
      }
    }
  }
}

TEST(MeshLayoutTest, SeveralStridedShardsCutFromRightToLeft) {
  const std::vector<int> mesh = {3, 2, 2};
  const std::vector<Placement> placements = {Placement::StridedShard(0, 4), Placement::StridedShard(0, 2),
                                             Placement::Shard(0)};
  for (int rank = 0; rank < 12; ++rank) {
    const auto a = static_cast<std::size_t>(rank / 4);
    const auto b = static_cast<std::size_t>(rank / 2 % 2);
    const auto c = static_cast<std::size_t>(rank % 2);
    EXPECT_EQ(Held({29}, 0, mesh, placements, rank), Chunk(Chunk(Chunk(Range(29), 2)[c], 2)[b], 3)[a]);
  }
}

TEST(MeshLayoutTest, ReplicasHoldTheSameAndEmptyShardsHaveNoRow) {
  const MeshTensor tensor = {.spec = {"w", DType::kBf16, {5, 2}},
                             .placements = {Placement::Replicate(), Placement::Shard(0)},
                             .local_name = "net.w"};

  const auto layout = MeshLayout({tensor}, {2, 4});

  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(layout->ranks[rank], layout->ranks[rank + 4]);
  EXPECT_EQ(layout->ranks[2].rows[0].logical_box, (Box{{4, 0}, {1, 2}}));
  EXPECT_EQ(layout->ranks[3].tensors[0].name, "net.w");
  EXPECT_EQ(layout->ranks[3].tensors[0].shape, (Dims{0, 2}));
  EXPECT_TRUE(layout->ranks[3].rows.empty());
}

TEST(MeshLayoutTest, APartialIsRefusedByName) {
  const auto layout = MeshLayout({{.spec = {"w", DType::kBf16, {4}}, .placements = {Placement::Partial()}}}, {2});

  ASSERT_FALSE(layout.ok());
  EXPECT_EQ(layout.status().reason(), "partial_placement");
  EXPECT_EQ(layout.status().code(), StatusCode::kUnimplemented);
  EXPECT_NE(layout.status().message().find("w"), std::string::npos);
}

TEST(MeshLayoutTest, PlacementsThatFitNoMeshAreRefused) {
  const auto refused = [](const Dims& shape, const std::vector<int>& mesh, const std::vector<Placement>& placements,
                          int rank) {
    const Result<Box> box = ShardOfRank(shape, mesh, placements, rank);
    return !box.ok() && box.status().reason() == "bad_trainer_layout";
  };
  const Placement shard = Placement::Shard(0);

  EXPECT_TRUE(refused({4}, {2}, {shard}, 2));
  EXPECT_TRUE(refused({4}, {2}, {shard}, -1));
  EXPECT_TRUE(refused({4}, {0}, {shard}, 0));
  EXPECT_TRUE(refused({4}, {1 << 20, 1 << 20}, {shard, shard}, 0));
  EXPECT_TRUE(refused({4}, {2}, {shard, shard}, 0));
  EXPECT_TRUE(refused({4}, {2}, {Placement::Shard(1)}, 0));
  EXPECT_TRUE(refused({4}, {2}, {Placement::Shard(-2)}, 0));
  EXPECT_TRUE(refused({}, {2}, {shard}, 0));
  EXPECT_TRUE(refused({4}, {2, 2}, {Placement::StridedShard(0, 3), shard}, 0));
  EXPECT_TRUE(refused({4}, {2, 2}, {shard, Placement::StridedShard(0, 2)}, 0));
  EXPECT_TRUE(refused({4}, {2, 2, 2}, {Placement::StridedShard(0, 2), shard, shard}, 0));
}

TEST(MeshLayoutTest, TheUsualPlacementsCutColumnsOfWhatReducesAndRowsOfTheRest) {
  const std::vector<TensorSpec> tensors = {
      {"l.q_proj.weight", DType::kBf16, {4, 4}}, {"l.q_proj.bias", DType::kBf16, {4}},
      {"l.o_proj.weight", DType::kBf16, {4, 4}}, {"l.o_proj.bias", DType::kBf16, {4}},
      {"l.norm.weight", DType::kBf16, {4}},      {"l.scale", DType::kBf16, {}}};

  const auto placed = UsualPlacements(tensors, {2, 2, 3});

  ASSERT_TRUE(placed.ok());
  const auto text = [&](std::size_t t) {
    std::string all;
    for (const Placement& placement : (*placed)[t].placements) all += placement.ToString() + " ";
    return all;
  };
  EXPECT_EQ(text(0), "Replicate StridedShard(0, 3) Shard(0) ");
  EXPECT_EQ(text(1), "Replicate StridedShard(0, 3) Shard(0) ");
  EXPECT_EQ(text(2), "Replicate Shard(0) Shard(1) ");
  EXPECT_EQ(text(3), "Replicate Shard(0) Replicate ");
  EXPECT_EQ(text(4), "Replicate Shard(0) Replicate ");
  EXPECT_EQ(text(5), "Replicate Replicate Replicate ");
  EXPECT_EQ(UsualPlacements(tensors, {1, 1, 1, 1}).status().reason(), "bad_trainer_layout");
}

}  // namespace
}  // namespace bascule
