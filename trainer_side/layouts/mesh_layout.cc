#include "trainer_side/layouts/mesh_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace bascule {
namespace {

Status BadTrainerLayout(std::string message) {
  return Status::InvalidArgument("bad_trainer_layout", std::move(message));
}

// One cut of a tensor dimension by a mesh dimension.
struct MeshCut {
  std::size_t mesh_dim = 0;
  int tensor_dim = 0;
};

// Puts the cuts of a tensor into the order in which they are made: a strided shard waits until the Shard to its right
// is made.
class CutOrder {
 public:
  CutOrder(const Dims& shape, const std::vector<int>& mesh, const std::vector<Placement>& placements)
      : shape_(shape), mesh_(mesh), placements_(placements) {}

  Result<std::vector<MeshCut>> Make() {
    for (std::size_t m = 0; m < mesh_.size(); ++m) RETURN_IF_ERROR(Add(m));
    if (waiting_.empty()) return std::move(cuts_);
    return BadTrainerLayout(
        fmt::format("StridedShard({}) without a Shard of that dimension to its right", waiting_.begin()->first));
  }

 private:
  Status Add(std::size_t m) {
    const Placement& placement = placements_[m];
    if (placement.kind == Placement::Kind::kPartial) {
      return Status::Unimplemented("partial_placement",
                                   fmt::format("mesh dimension {} holds addends, not weights; reduce them first", m));
    }
    if (placement.kind == Placement::Kind::kReplicate) return OkStatus();
    const int dim = placement.dim < 0 ? placement.dim + shape_.size() : placement.dim;
    if (dim < 0 || dim >= shape_.size()) {
      return BadTrainerLayout(fmt::format("{} of shape={}", placement.ToString(), shape_.ToString()));
    }
    if (placement.kind == Placement::Kind::kStridedShard) {
      waiting_[dim].push_back(m);
      return OkStatus();
    }
    if (finished_.contains(dim)) {
      return BadTrainerLayout(fmt::format("a second Shard({}) right of a strided one", dim));
    }
    cuts_.push_back({m, dim});
    return AddWaiting(dim, mesh_[m]);
  }

  // The strided shards of `dim`, from right to left, behind the Shard that makes `parts` parts.
  Status AddWaiting(int dim, std::int64_t parts) {
    const auto waiting = waiting_.find(dim);
    if (waiting == waiting_.end()) return OkStatus();
    for (auto m = waiting->second.rbegin(); m != waiting->second.rend(); ++m) {
      const Placement& strided = placements_[*m];
      if (strided.split_factor != parts) {
        return BadTrainerLayout(fmt::format("{} with {} parts to its right", strided.ToString(), parts));
      }
      cuts_.push_back({*m, dim});
      parts *= mesh_[*m];
    }
    waiting_.erase(waiting);
    finished_.insert(dim);
    return OkStatus();
  }

  const Dims& shape_;
  const std::vector<int>& mesh_;
  const std::vector<Placement>& placements_;
  std::vector<MeshCut> cuts_;
  std::map<int, std::vector<std::size_t>> waiting_;  // tensor dimension: mesh dimensions, from left to right
  std::set<int> finished_;                           // tensor dimensions whose strided shards have been cut
};

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
  ASSIGN_OR_RETURN(const std::vector<MeshCut> cuts, CutOrder(shape, mesh, placements).Make());
  std::vector<int> coordinate(mesh.size());
  for (std::size_t m = mesh.size(); m-- > 0; rank /= mesh[m]) coordinate[m] = rank % mesh[m];
  Box box = Box::Whole(shape);
  for (const MeshCut& cut : cuts) {
    CutAsChunk(box, cut.tensor_dim, coordinate[cut.mesh_dim], mesh[cut.mesh_dim]);
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
