// What a decoder is made of, as data: modules with the names of their logical tensors, their sizes and the rule by
// which tensor-parallel ranks share them. An architecture is a list of modules; model_table.h makes tensors of them.
//
// Names have no ".weight" or ".bias"; in a layer they have no "model.layers.N." either. A pointer to a member says
// where a decoder finds the tensor; it is null for tensors that our decoder does not use.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "model/engine_tensors.h"
#include "model/extent.h"

namespace bascule {

using LayerIndex = int EngineLayerTensors::*;
using ModelIndex = int EngineTensors::*;

// How tensor-parallel ranks share a tensor.
enum class Cut : std::uint8_t {
  kWhole,       // every rank holds all of it
  kRows,        // column-parallel: each rank an equal range of rows (outputs)
  kKvHeads,     // the same by KV heads; where there are more ranks than heads, several ranks hold the same head
  kColumns,     // row-parallel: each rank an equal range of columns (inputs)
  kVocabulary,  // zero rows up to a multiple of 64, then each rank an equal range of rows
};

// A tensor that every rank holds whole: a norm, a router.
struct Parameter {
  std::string name;  // with its ending
  std::vector<Extent> shape;
  std::string engine_name = {};  // empty: as `name`
  LayerIndex layer_index = nullptr;
  ModelIndex model_index = nullptr;
};

// Embedding and head: [vocabulary, hidden].
struct VocabularyMatrix {
  std::string name;
  Extent vocabulary, hidden;
  ModelIndex model_index = nullptr;
};

// Output rows of a linear. Ranges of rows are whole multiples of `unit`: a head.
struct LinearPart {
  std::string name;  // of the logical tensor
  Extent rows;
  Cut cut = Cut::kRows;
  std::int64_t unit = 1;
};

// One engine tensor [sum of rows, columns]: a rank's rows of the first part, then of the second, ...
// A row-parallel linear has one part, cut by kColumns; its unit counts columns, and its bias is whole on every rank.
struct Linear {
  std::string engine_name;
  std::vector<LinearPart> parts;
  Extent columns;
  bool bias = false;
  std::string stored_name = {};  // not empty: one logical tensor of this name holds all parts, one behind the other
  LayerIndex weight_index = nullptr, bias_index = nullptr;
};

// A gated feed-forward network per expert: logical tensors NAME.E.GATE [ffn, hidden], .UP and .DOWN [hidden, ffn].
// Engine tensors: w13_weight [experts, 2 * ffn, hidden] with gate rows, then up, and w2_weight [experts, hidden, ffn].
struct Experts {
  std::string engine_name, name;
  std::string gate, up, down;
  Extent count, ffn, hidden;
  // Modules under which checkpoints store all experts in one tensor, with or without ".weight": gate_up_proj
  // [experts, 2 * ffn, hidden] with gate rows, then up; or gate_proj and up_proj [experts, ffn, hidden] by themselves;
  // and down_proj [experts, hidden, ffn].
  std::vector<std::string> stacked = {};
  LayerIndex gate_up_index = nullptr, down_index = nullptr;
};

// Checkpoints may also store the logical tensor NAME under OTHER (both with their endings).
struct OtherName {
  std::string name, other;
};

using Module = std::variant<Parameter, VocabularyMatrix, Linear, Experts, OtherName>;

}  // namespace bascule
