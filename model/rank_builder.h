// Cuts the tensors of a model table for one engine rank.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "bridge/layout/layout.h"
#include "model/model_table.h"

namespace bascule {

// The vocabulary is padded with zero rows to a multiple of this.
inline constexpr std::int64_t kVocabularyMultiple = 64;

// Items [begin, begin + size).
struct Range {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

// Part `part` of `parts` of `count` items: sizes differ by one at most.
Range EvenRange(std::int64_t count, int part, int parts);

// One of `count` tensor-parallel ranks.
struct TensorRank {
  int rank = 0;
  int count = 1;
};

class RankBuilder {
 public:
  // `specs` are the table's logical tensors in the types to store them in; they outlive this.
  RankBuilder(const std::vector<TensorSpec>& specs, TensorRank rank, bool expert_parallel)
      : specs_(specs), rank_(rank), expert_parallel_(expert_parallel) {}

  // Adds the rank's share of `tensor` as a local tensor and returns its index.
  //
  // InvalidArgument "does_not_divide"  a size cannot be shared evenly: tensor and numbers
  // InvalidArgument "mixed_dtypes"     its logical tensors have several types: both
  Result<int> Add(const TableTensor& tensor);

  RankLayout Take() { return std::move(layout_); }

 private:
  const TensorSpec& SpecOf(std::int32_t logical) const { return specs_[static_cast<std::size_t>(logical)]; }
  Result<DType> DTypeOfBlocks(const TableTensor& tensor) const;
  // Adds the rows of `block`, which begins `first_row` rows into the engine tensor, of each of `experts` (none where
  // the tensor has no experts). Returns the shape of this rank's share.
  Result<Dims> AddBlock(const Block& block, std::int64_t first_row, const TableTensor& tensor, Range experts,
                        TensorRank rank);
  Result<Dims> AddVocabulary(std::int32_t logical);
  void AddRow(const Box& local_box, std::int32_t logical, const Box& logical_box);

  const std::vector<TensorSpec>& specs_;
  const TensorRank rank_;
  const bool expert_parallel_;
  RankLayout layout_;
};

}  // namespace bascule
