// Stage: layout ([layout] -> plan -> bucket -> transport)
//
// Device mesh placements, as torch's DTensor has them: ranks in an n-dimensional mesh, row-major, and for every tensor
// one placement per mesh dimension. Shard(d) cuts dimension d as torch.chunk does: parts of ceil(n / parts), so the
// last ones may be smaller or empty.
//
//   8 rows, mesh [2, 2] (data, tensor):     rank       0    1    2    3
//     [Shard(0), Shard(0)]                  rows       0-1  2-3  4-5  6-7    left to right: data first
//     [StridedShard(0, 2), Shard(0)]        rows       0-1  4-5  2-3  6-7    tensor parallelism first, then FSDP cuts
//                                                                            what each of its ranks holds
//
// Where two mesh dimensions cut the same tensor dimension the order matters. Placements stand in mesh order and cut
// from left to right; a StridedShard is one that cuts later than it stands, behind the Shards to its right. Its split
// factor is the number of parts that those make. With it every rank's shard stays one box.
//
// Source: torch/distributed/tensor/placement_types.py (Shard, _StridedShard, Replicate, Partial) and _utils.py
// (compute_local_shape_and_global_offset, _explicit_order_placements).
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"

namespace bascule {

struct Placement {
  enum class Kind : std::uint8_t { kReplicate, kShard, kStridedShard, kPartial };
  Kind kind = Kind::kReplicate;
  int dim = 0;           // of the tensor, for the two kinds of shard; negative counts from the end
  int split_factor = 1;  // of a strided shard

  static Placement Replicate() { return {}; }
  static Placement Shard(int dim) { return {.kind = Kind::kShard, .dim = dim}; }
  static Placement StridedShard(int dim, int split_factor) {
    return {.kind = Kind::kStridedShard, .dim = dim, .split_factor = split_factor};
  }
  // A sum that is not yet made; described so that it can be refused by name.
  static Placement Partial() { return {.kind = Kind::kPartial}; }
  std::string ToString() const;  // "Shard(0)", "StridedShard(0, 2)", "Replicate", "Partial"
  friend bool operator==(const Placement&, const Placement&) = default;
};

struct MeshTensor {
  TensorSpec spec;                    // of the whole (logical) tensor
  std::vector<Placement> placements;  // one per mesh dimension
  std::string local_name = {};        // the framework's; empty: the logical name
};

// What the rank with row-major number `rank` holds of a tensor of `shape`. The box may be empty.
//
// Unimplemented   "partial_placement"   a Partial holds addends, not weights: reduce them first
// InvalidArgument "bad_trainer_layout"  no such rank; another number of placements than of mesh dimensions; a dimension
//                                       that the tensor does not have; a strided shard whose split factor is not the
//                                       number of parts to its right
Result<Box> ShardOfRank(const Dims& shape, const std::vector<int>& mesh, const std::vector<Placement>& placements,
                        int rank);

// Every rank has one dense local tensor for each of `tensors`, of the size of its shard (also when that is empty).
//
// as ShardOfRank, with the tensor's name; InvalidArgument "bad_layout"  as CheckLayout
Result<Layout> MeshLayout(const std::vector<MeshTensor>& tensors, const std::vector<int>& mesh);

// The usual placements of a decoder on a mesh of 1 to 3 dimensions, by names: [fully-sharded], [fully-sharded, tensor]
// or [replicas, fully-sharded, tensor]. Tensor parallelism cuts o_proj, down_proj and w2 by columns and every other
// matrix by rows; it leaves norms, routers and the biases of the former whole. Fully-sharded data parallelism cuts
// dimension 0 of what is left, last.
//
// InvalidArgument "bad_trainer_layout"  a mesh of other dimensions
Result<std::vector<MeshTensor>> UsualPlacements(const std::vector<TensorSpec>& tensors, const std::vector<int>& mesh);

}  // namespace bascule
