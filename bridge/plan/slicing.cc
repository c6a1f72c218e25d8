#include "bridge/plan/slicing_internal.h"

#include <fmt/format.h>

#include <algorithm>

#include "bridge/plan/box_cover_internal.h"
#include "bridge/plan/box_index_internal.h"

namespace bascule {
namespace {

// The rows of one side that have elements of one logical tensor, in the order of ranks and rows.
struct TensorRows {
  std::vector<RowRef> rows;
  std::vector<Box> boxes;  // logical, one a row
};

// Per engine tensor; `engine_of` maps a side's logical index to the engine's, or to -1.
template <typename EngineOf>
std::vector<TensorRows> RowsByTensor(const Layout& layout, std::size_t tensor_count, const EngineOf& engine_of) {
  std::vector<TensorRows> tensors(tensor_count);
  for (std::size_t rank = 0; rank < layout.ranks.size(); ++rank) {
    const std::vector<MapRow>& rows = layout.ranks[rank].rows;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].logical == kFill || rows[i].logical_box.Empty()) continue;
      const std::int32_t tensor = engine_of(rows[i].logical);
      if (tensor < 0) continue;
      TensorRows& of_tensor = tensors[static_cast<std::size_t>(tensor)];
      of_tensor.rows.push_back({static_cast<std::int32_t>(rank), static_cast<std::int32_t>(i)});
      of_tensor.boxes.push_back(rows[i].logical_box);
    }
  }
  return tensors;
}

// The holders of a sender cell, each rank once with its first row.
std::vector<RowRef> HoldersOf(const Cell& cell, const TensorRows& sender) {
  std::vector<RowRef> holders;
  for (const std::int32_t holder : cell.holders) {
    const RowRef row = sender.rows[static_cast<std::size_t>(holder)];
    if (holders.empty() || holders.back().rank != row.rank) holders.push_back(row);
  }
  return holders;
}

// Slices one logical tensor; appends to a Slicing.
class TensorSlicer {
 public:
  TensorSlicer(std::int32_t tensor, const TensorSpec& spec, std::int64_t bucket_bytes, bool twins, Slicing& slicing)
      : tensor_(tensor), spec_(spec), bucket_bytes_(bucket_bytes), twins_(twins), slicing_(slicing) {}

  Status Slice(const TensorRows& sender, const TensorRows& engine) {
    const std::vector<Cell> sender_cells = DisjointCells(sender.boxes);
    const auto first_set = static_cast<std::int32_t>(slicing_.holder_sets.size());
    std::vector<Box> boxes;
    for (const Cell& cell : sender_cells) {
      boxes.push_back(cell.box);
      slicing_.holder_sets.push_back(HoldersOf(cell, sender));
    }
    const BoxIndex index(std::move(boxes));
    for (const Cell& needed : DisjointCells(engine.boxes)) {
      std::vector<Box> found;
      for (const std::int32_t cell : index.Overlapping(needed.box)) {
        found.push_back(*Intersect(index.box(cell), needed.box));
        Append(found.back(), first_set + cell, needed, engine);
      }
      if (const std::optional<CoverBreach> hole = FindBreach(needed.box, found)) {
        const RowRef row = engine.rows[static_cast<std::size_t>(needed.holders.front())];
        return Status::FailedPrecondition(
            "not_covered", fmt::format("no sender rank holds tensor={} box={}, which engine rank={} needs", spec_.name,
                                       hole->box.ToString(), row.rank));
      }
    }
    return OkStatus();
  }

 private:
  void Append(const Box& box, std::int32_t holders, const Cell& needed, const TensorRows& engine) {
    const std::vector<Box> parts = PartsOf(box, spec_.dtype, bucket_bytes_);
    const std::size_t count = needed.holders.size();
    const bool shared = twins_ && AreOfDifferentRanks(needed, engine);
    for (std::size_t i = 0; i < count; ++i) {
      slicing_.runs.push_back({.tensor = tensor_,
                               .logical_box = box,
                               .engine = engine.rows[static_cast<std::size_t>(needed.holders[i])],
                               .holders = holders,
                               .counts = i == 0,
                               .twins = shared ? count - i : 1,
                               .first_part = slicing_.parts.size() + (shared ? 0 : i),
                               .part_step = shared ? 1 : count,
                               .part_count = parts.size()});
    }
    for (const Box& part : parts) {
      slicing_.parts.insert(slicing_.parts.end(), shared ? 1 : count,
                            {holders, part.Elements() * ItemBytes(spec_.dtype)});
    }
  }
  // One that has the box in two rows needs it twice. Rows are in the order of ranks.
  static bool AreOfDifferentRanks(const Cell& needed, const TensorRows& engine) {
    return std::ranges::adjacent_find(needed.holders, {}, [&](std::int32_t holder) {
             return engine.rows[static_cast<std::size_t>(holder)].rank;
           }) == needed.holders.end();
  }

  const std::int32_t tensor_;
  const TensorSpec& spec_;
  const std::int64_t bucket_bytes_;
  const bool twins_;
  Slicing& slicing_;
};

}  // namespace

std::vector<Box> PartsOf(const Box& box, DType wire_type, std::int64_t bucket_bytes) {
  return CutBox(box, bucket_bytes / ItemBytes(wire_type));
}

Result<Slicing> SliceTensors(const Layout& sender, const Layout& engine, const NameMatch& match,
                             std::int64_t bucket_bytes, bool twins) {
  const std::size_t count = engine.tensors.size();
  const std::vector<TensorRows> sender_rows = RowsByTensor(
      sender, count, [&](std::int32_t logical) { return match.engine_of_sender[static_cast<std::size_t>(logical)]; });
  const std::vector<TensorRows> engine_rows = RowsByTensor(engine, count, [](std::int32_t logical) { return logical; });
  Slicing slicing;
  for (std::size_t t = 0; t < count; ++t) {
    if (match.sender_of_engine[t] < 0) continue;
    TensorSlicer slicer(static_cast<std::int32_t>(t), engine.tensors[t], bucket_bytes, twins, slicing);
    RETURN_IF_ERROR(slicer.Slice(sender_rows[t], engine_rows[t]));
  }
  return slicing;
}

}  // namespace bascule
