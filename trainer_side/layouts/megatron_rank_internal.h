// Makes one Megatron rank's local tensors and their rows.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"

namespace bascule {

// Rows [first_row, first_row + rows) of a logical tensor (elements, where it has one dimension).
struct RowPiece {
  std::int32_t logical = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
};

// Part `part` of `parts`.
struct CutRank {
  int part = 0;
  int parts = 1;
};

class MegatronRank {
 public:
  // `specs` are the logical tensors; they outlive this.
  explicit MegatronRank(const std::vector<TensorSpec>& specs) : specs_(specs) {}

  // A local tensor of `pieces`, one behind the other.
  //
  // InvalidArgument "mixed_dtypes"
  Status AddPieces(std::string name, std::span<const RowPiece> pieces);
  // This rank's share of `pieces`, which are concatenated and then cut evenly: query groups.
  //
  // InvalidArgument "does_not_divide"; as AddPieces
  Status AddCutOfPieces(std::string name, std::span<const RowPiece> pieces, CutRank rank);
  // This rank's share of each of `pieces`, one behind the other: gate and up.
  //
  // InvalidArgument "does_not_divide"; as AddPieces
  Status AddPiecesCut(std::string name, std::span<const RowPiece> pieces, CutRank rank);
  // This rank's share of the columns of a matrix.
  //
  // InvalidArgument "does_not_divide"
  Status AddColumns(std::string name, std::int32_t logical, CutRank rank);
  // This rank's share of the rows of a matrix that is padded to a multiple of `multiple` times the number of ranks.
  void AddVocabulary(std::string name, std::int32_t logical, std::int64_t multiple, CutRank rank);

  RankLayout Take() { return std::move(layout_); }

 private:
  const TensorSpec& SpecOf(std::int32_t logical) const { return specs_[static_cast<std::size_t>(logical)]; }
  std::int32_t NextLocal() const { return static_cast<std::int32_t>(layout_.tensors.size()); }

  const std::vector<TensorSpec>& specs_;
  RankLayout layout_;
};

}  // namespace bascule
