#include "trainer_side/layouts/mesh_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

namespace bascule {
namespace {

Status BadTrainerLayout(std::string message) {
  return Status::InvalidArgument("bad_trainer_layout", std::move(message));
}

bool IsShard(const Placement& placement) {
  return placement.kind == Placement::Kind::kShard || placement.kind == Placement::Kind::kStridedShard;
}

// One cut of a tensor dimension by a mesh dimension.
struct MeshCut {
  int mesh_dim = 0;
  int tensor_dim = 0;
};

// The cuts in the order in which they are made: a strided shard is put off until the Shard to its right is made.
Result<std::vector<MeshCut>> CutsInOrder(const Dims& shape, const std::vector<int>& mesh,
                                         const std::vector<Placement>& placements) {
  std::vector<MeshCut> cuts;
  std::map<int, std::vector<int>> put_off;  // tensor dimension: mesh dimensions, from left to right
  std::vector<int> finished;                // tensor dimensions whose strided shards have been cut
  for (int m = 0; m < std::ssize(mesh); ++m) {
    const Placement& placement = placements[static_cast<std::size_t>(m)];
    if (placement.kind == Placement::Kind::kPartial) {
      return Status::Unimplemented("partial_placement",
                                   fmt::format("mesh dimension {} holds addends, not weights; reduce them first", m));
    }
    if (!IsShard(placement)) continue;
    const int dim = placement.dim < 0 ? placement.dim + shape.size() : placement.dim;
    if (dim < 0 || dim >= shape.size()) {
      return BadTrainerLayout(fmt::format("{} of shape={}", placement.ToString(), shape.ToString()));
    }
    if (placement.kind == Placement::Kind::kStridedShard) {
      put_off[dim].push_back(m);
      continue;
    }
    if (std::ranges::find(finished, dim) != finished.end()) {
      return BadTrainerLayout(fmt::format("a second Shard({}) right of a strided one", dim));
    }
    cuts.push_back({m, dim});
    const auto waiting = put_off.find(dim);
    if (waiting == put_off.end()) continue;
    std::int64_t parts = mesh[static_cast<std::size_t>(m)];
    for (auto it = waiting->second.rbegin(); it != waiting->second.rend(); ++it) {
      const Placement& strided = placements[static_cast<std::size_t>(*it)];
      if (strided.split_factor != parts) {
        return BadTrainerLayout(fmt::format("{} with {} parts to its right", strided.ToString(), parts));
      }
      cuts.push_back({*it, dim});
      parts *= mesh[static_cast<std::size_t>(*it)];
    }
    put_off.erase(waiting);
    finished.push_back(dim);
  }
  if (!put_off.empty()) {
    return BadTrainerLayout(
        fmt::format("StridedShard({}) without a Shard of that dimension to its right", put_off.begin()->first));
  }
  return cuts;
}

Result<int> RanksOf(const std::vector<int>& mesh) {
  std::int64_t ranks = 1;
  for (const int size : mesh) {
    ranks *= size;
    if (size < 1 || ranks > std::numeric_limits<int>::max()) {
      return BadTrainerLayout(fmt::format("mesh=[{}] is no mesh", fmt::join(mesh, ", ")));
    }
  }
  return static_cast<int>(ranks);
}

// The part of a box that chunk `part` of `parts` is.
void CutAsChunk(Box& box, int dim, int part, int parts) {
  const std::int64_t size = box.extent[dim];
  const std::int64_t chunk = size / parts + (size % parts == 0 ? 0 : 1);
  const std::int64_t begin = chunk == 0 || part > size / chunk ? size : std::min(chunk * part, size);
  box.offset[dim] += begin;
  box.extent[dim] = std::min(chunk, size - begin);
}

// Which dimension of a matrix tensor parallelism cuts; -1: none.
int TensorParallelDim(const TensorSpec& tensor) {
  const std::string_view name = tensor.name;
  const std::size_t ending = name.rfind('.');
  const std::string_view path = name.substr(0, ending == std::string_view::npos ? 0 : ending);
  const std::string_view module = path.substr(path.rfind('.') + 1);
  static constexpr std::array<std::string_view, 3> kByColumns = {"o_proj", "down_proj", "w2"};
  const bool by_columns = std::ranges::find(kByColumns, module) != kByColumns.end();
  if (module == "gate") return -1;  // a router
  if (tensor.shape.size() >= 2) return by_columns ? 1 : 0;
  return tensor.shape.size() == 1 && name.ends_with(".bias") && !by_columns ? 0 : -1;
}

}  // namespace

std::string Placement::ToString() const {
  switch (kind) {
    case Kind::kReplicate:
      return "Replicate";
    case Kind::kShard:
      return fmt::format("Shard({})", dim);
    case Kind::kStridedShard:
      return fmt::format("StridedShard({}, {})", dim, split_factor);
    case Kind::kPartial:
      return "Partial";
  }
  return "";
}

Result<Box> ShardOfRank(const Dims& shape, const std::vector<int>& mesh, const std::vector<Placement>& placements,
                        int rank) {
  ASSIGN_OR_RETURN(const int ranks, RanksOf(mesh));
  if (rank < 0 || rank >= ranks) return BadTrainerLayout(fmt::format("rank={} of {}", rank, ranks));
  if (placements.size() != mesh.size()) {
    return BadTrainerLayout(fmt::format("{} placements for a mesh of {} dimensions", placements.size(), mesh.size()));
  }
  ASSIGN_OR_RETURN(const std::vector<MeshCut> cuts, CutsInOrder(shape, mesh, placements));
  std::vector<int> coordinate(mesh.size());
  for (std::size_t m = mesh.size(); m-- > 0; rank /= mesh[m]) coordinate[m] = rank % mesh[m];
  Box box = Box::Whole(shape);
  for (const MeshCut& cut : cuts) {
    const auto m = static_cast<std::size_t>(cut.mesh_dim);
    CutAsChunk(box, cut.tensor_dim, coordinate[m], mesh[m]);
  }
  return box;
}

Result<Layout> MeshLayout(const std::vector<MeshTensor>& tensors, const std::vector<int>& mesh) {
  ASSIGN_OR_RETURN(const int ranks, RanksOf(mesh));
  Layout layout;
  for (const MeshTensor& tensor : tensors) layout.tensors.push_back(tensor.spec);
  RETURN_IF_ERROR(CheckTensors(layout.tensors));
  for (int r = 0; r < ranks; ++r) {
    RankLayout rank;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const MeshTensor& tensor = tensors[t];
      const Result<Box> box = ShardOfRank(tensor.spec.shape, mesh, tensor.placements, r);
      if (!box.ok()) return box.status().WithContext(fmt::format("tensor={}", tensor.spec.name));
      const auto local = static_cast<std::int32_t>(rank.tensors.size());
      rank.tensors.push_back({.name = tensor.local_name.empty() ? tensor.spec.name : tensor.local_name,
                              .dtype = tensor.spec.dtype,
                              .shape = box->extent,
                              .stride = {}});
      if (box->Empty()) continue;
      rank.rows.push_back({.local = local,
                           .local_box = Box::Whole(box->extent),
                           .logical = static_cast<std::int32_t>(t),
                           .logical_box = *box});
    }
    layout.ranks.push_back(std::move(rank));
  }
  RETURN_IF_ERROR(CheckLayout(layout));
  return layout;
}

Result<std::vector<MeshTensor>> UsualPlacements(const std::vector<TensorSpec>& tensors, const std::vector<int>& mesh) {
  if (mesh.empty() || mesh.size() > 3) {
    return BadTrainerLayout(
        fmt::format("mesh=[{}]: the usual placements know 1 to 3 dimensions", fmt::join(mesh, ", ")));
  }
  const bool tensor_parallel = mesh.size() > 1;
  std::vector<MeshTensor> placed;
  for (const TensorSpec& tensor : tensors) {
    std::vector<Placement> placements(mesh.size(), Placement::Replicate());
    const int cut = tensor_parallel ? TensorParallelDim(tensor) : -1;
    if (cut >= 0) placements.back() = Placement::Shard(cut);
    if (!tensor.shape.empty()) {
      Placement& fully_sharded = placements[mesh.size() == 3 ? 1 : 0];
      fully_sharded = cut == 0 ? Placement::StridedShard(0, mesh.back()) : Placement::Shard(0);
    }
    placed.push_back({.spec = tensor, .placements = std::move(placements)});
  }
  return placed;
}

}  // namespace bascule
