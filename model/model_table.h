// An architecture's modules turned into tensors: every logical tensor with its shape and the rule behind it, and every
// engine tensor as blocks of logical ones, not yet cut for any rank. What a module expands to (a weight, a bias) is
// decided here and nowhere else.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "bridge/layout/dims.h"
#include "model/model_config.h"
#include "model/module.h"
#include "model/weight_family.h"

namespace bascule {

// Canonical names of the first and last matrix.
inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kHeadName = "lm_head.weight";

struct LogicalTensor {
  std::string name;
  Dims shape;
  std::string rule;               // "[kv_heads 2 * head_size 16, hidden 64]"
  std::span<const DType> dtypes;  // what it may be stored as
  std::int32_t family = -1;       // of ModelTable::families; -1: none
};

// Logical tensors that are complete or refused: a quantised weight, its scales and zero points.
struct TensorFamily {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  WeightScheme scheme;
  std::vector<std::int32_t> members;  // logical tensors
};

// Rows [first_row, first_row + rows) of a logical tensor, and how tensor-parallel ranks share them. Ranks get whole
// multiples of `unit` rows (columns where `cut` is kColumns).
//
// Scales: one row (column) stands for `grain` of the weight's, of which there are `weight_extent`, and `unit` counts
// those. A rank's share of the weight then has to be whole grains, up to the last one.
struct Block {
  std::int32_t logical = 0;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
  Cut cut = Cut::kWhole;
  std::int64_t unit = 1;
  std::int64_t grain = 1;
  std::int64_t weight_extent = 0;  // where grain > 1
};

// Which pipeline stages hold a tensor.
enum class Stage : std::uint8_t { kFirst, kLast, kFirstAndLast, kOfLayer };

// An engine tensor: a rank's share of the first block, then of the second, ... one behind the other in dimension 0.
// With expert_count > 0 there is one such matrix for each expert in a dimension in front of that; the blocks are those
// of expert 0, and `expert_step` logical tensors later come those of the next.
struct TableTensor {
  std::string name;
  std::vector<Block> blocks;
  std::int64_t expert_count = 0;
  std::int32_t expert_step = 0;
  Stage stage = Stage::kOfLayer;
  std::int64_t layer = 0;
  LayerIndex layer_index = nullptr;
  ModelIndex model_index = nullptr;
};

struct ModelTable {
  std::vector<LogicalTensor> logical;  // in the order of computation
  std::vector<TensorFamily> families;
  std::vector<TableTensor> tensors;
  // Other ways to store logical tensors, each one stored tensor made of whole ones: all experts in one, another name.
  std::vector<TableTensor> spellings;
};

// InvalidArgument "bad_config"            sizes that overflow or do not divide (query heads by KV heads)
// InvalidArgument "partly_quantized"      modules that are one engine tensor are not quantised alike: names two
// InvalidArgument "quantization_block_cut"  modules stored as one tensor share a block of scales
// Unimplemented   "unknown_architecture"
Result<ModelTable> MakeModelTable(const ModelConfig& config);

}  // namespace bascule
