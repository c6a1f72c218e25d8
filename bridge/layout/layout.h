// Stage: layout ([layout] -> plan -> bucket -> transport)
//
// What each rank of one side holds, as map rows onto the logical tensors that both sides share. A row says: this box
// of my local tensor is that box of that logical tensor. Fusion (three rows for qkv_proj), row and column slices,
// replicated KV heads, interleaved Megatron rows, padding (fill rows) are all rows; neither side ever maps onto the
// other's names.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "base/status.h"
#include "bridge/layout/box.h"
#include "bridge/layout/dtype.h"

namespace bascule {

// A logical tensor: canonical name and global shape. In an engine's layout `dtype` is its storage type, which is the
// wire type; in a sender's layout it is the type the sender holds.
struct TensorSpec {
  std::string name;
  DType dtype = DType::kBf16;
  Dims shape;
  std::int64_t Elements() const;
  std::int64_t Bytes() const { return Elements() * ItemBytes(dtype); }
  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// A tensor as one rank stores it.
struct LocalTensor {
  std::string name;
  DType dtype = DType::kBf16;
  Dims shape;
  Dims stride;                 // in elements; empty: row-major and dense
  std::int64_t Bytes() const;  // of the dense form
  friend bool operator==(const LocalTensor&, const LocalTensor&) = default;
};

inline constexpr std::int32_t kFill = -1;

// `local_box` of local tensor `local` is `logical_box` of logical tensor `logical`. The boxes hold the same elements
// in the same order: their extents are equal once dimensions of extent 1 are left out.
// With logical == kFill the local box holds zero bytes that no logical element covers (padding).
struct MapRow {
  std::int32_t local = 0;
  Box local_box;
  std::int32_t logical = 0;
  Box logical_box;
  friend bool operator==(const MapRow&, const MapRow&) = default;
};

struct RankLayout {
  std::vector<LocalTensor> tensors;
  std::vector<MapRow> rows;
  friend bool operator==(const RankLayout&, const RankLayout&) = default;
};

inline constexpr std::size_t kMaxNameBytes = 1024;

// One side: logical tensors in the order in which the engine consumes them, and every rank's rows.
struct Layout {
  std::vector<TensorSpec> tensors;
  std::vector<RankLayout> ranks;
  friend bool operator==(const Layout&, const Layout&) = default;
};

// Names of 1 to kMaxNameBytes bytes without control characters, each once; shapes whose bytes fit 63 bits.
//
// InvalidArgument "bad_layout"
Status CheckTensors(const std::vector<TensorSpec>& tensors);

// Checks everything a peer or file could have got wrong: indices, boxes inside tensors, matching extents and dtypes
// (rows of one logical tensor agree in dtype on all ranks), unique names, sizes that do not overflow.
// An empty box carries no range: its offset is not looked at, and no row with one takes part in anything.
//
// InvalidArgument "bad_layout"  names rank, row and numbers
Status CheckLayout(const Layout& layout);

// The part of it that is about one rank, on logical tensors that pass CheckTensors.
//
// InvalidArgument "bad_layout"  names row and numbers
Status CheckRank(const RankLayout& rank, const std::vector<TensorSpec>& tensors);

// Identity of a layout: SHA-256 of a canonical encoding. Equal layouts, equal digests.
Hash256 LayoutDigest(const Layout& layout);

// A layout with one rank that holds every tensor whole under its logical name: a plain trainer, a checkpoint.
Layout PlainLayout(std::vector<TensorSpec> tensors);
// True when one rank holds every tensor, each as a row of its own that is the whole of it.
bool HoldsFullTensors(const Layout& layout);

}  // namespace bascule
