#include "tools/rank_weights.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/checked_math.h"
#include "device/host/host_memory.h"
#include "kernels/pack.h"

namespace bascule {
namespace {

constexpr std::int64_t kTensorAlignment = 64;

Dims StrideOf(const LocalTensor& tensor) {
  return tensor.stride.empty() ? RowMajorStride(tensor.shape) : tensor.stride;
}

// From the first element to the end of the last.
std::int64_t SpanBytes(const LocalTensor& tensor) {
  const Dims stride = StrideOf(tensor);
  std::int64_t last = 0;
  for (int d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] == 0) return 0;
    last += (tensor.shape[d] - 1) * stride[d];
  }
  return (last + 1) * ItemBytes(tensor.dtype);
}

// A box of stored memory and where it goes.
struct Piece {
  SourceBox from;
  std::byte* base = nullptr;
  BoxPlace to;
  const std::byte* Begin() const { return from.base + from.place.offset * from.item_bytes; }
};

// Where a source has a logical tensor.
struct StoredRow {
  int rank = 0;
  const MapRow* row = nullptr;
};
using StoredRows = std::unordered_map<std::string_view, std::vector<StoredRow>>;

StoredRows RowsByName(const Layout& stored) {
  StoredRows rows;
  for (std::size_t rank = 0; rank < stored.ranks.size(); ++rank) {
    for (const MapRow& row : stored.ranks[rank].rows) {
      if (row.logical == kFill || row.logical_box.Empty()) continue;
      rows[stored.tensors[static_cast<std::size_t>(row.logical)].name].push_back({static_cast<int>(rank), &row});
    }
  }
  return rows;
}

// What `from` has of the logical box `common`, and where `row` of `local` at `base` has it.
Piece PieceOf(const Box& common, const WeightSource& stored, const StoredRow& from, const MapRow& row,
              const LocalTensor& local, std::byte* base) {
  const LocalTensor& file =
      stored.layout().ranks[static_cast<std::size_t>(from.rank)].tensors[static_cast<std::size_t>(from.row->local)];
  const Box source = CorrespondingBox(common, from.row->logical_box, from.row->local_box);
  const Box target = CorrespondingBox(common, row.logical_box, row.local_box);
  return {.from = {.base = stored.Base(from.rank, from.row->local),
                   .item_bytes = ItemBytes(file.dtype),
                   .shape = ShapeOf(source),
                   .place = PlaceInStrided(source, StrideOf(file))},
          .base = base,
          .to = PlaceInStrided(target, StrideOf(local))};
}

Status CopyInFileOrder(const WeightSource& stored, std::vector<Piece> pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.Begin() < b.Begin(); });
  std::vector<SourceBox> boxes;
  for (const Piece& piece : pieces) boxes.push_back(piece.from);
  const std::unique_ptr<BoxReader> reader = stored.Read(std::move(boxes));
  for (const Piece& piece : pieces) {
    ASSIGN_OR_RETURN(const BoxView view, reader->Next());
    CopyBoxOnHost(piece.from.shape, piece.from.item_bytes, view.base, view.place, piece.base, piece.to);
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<RankWeights>> RankWeights::Read(const WeightSource& stored, Layout part) {
  std::unique_ptr<RankWeights> weights(new RankWeights(std::move(part)));
  RETURN_IF_ERROR(weights->Allocate());
  RETURN_IF_ERROR(weights->Fill(stored));
  return weights;
}

Status RankWeights::Allocate() {
  std::int64_t end = 0;
  for (const LocalTensor& tensor : part_.ranks.front().tensors) {
    offset_.push_back(end);
    end = RoundUp(end + SpanBytes(tensor), kTensorAlignment);
  }
  ASSIGN_OR_RETURN(memory_, HostMemory().Allocate(static_cast<std::size_t>(std::max(end, kTensorAlignment))));
  return OkStatus();
}

Status RankWeights::Fill(const WeightSource& stored) {
  const StoredRows rows = RowsByName(stored.layout());
  std::vector<Piece> pieces;
  for (const MapRow& row : part_.ranks.front().rows) {
    if (row.logical == kFill || row.logical_box.Empty()) continue;
    const LocalTensor& local = part_.ranks.front().tensors[static_cast<std::size_t>(row.local)];
    const auto held = rows.find(part_.tensors[static_cast<std::size_t>(row.logical)].name);
    std::int64_t missing = row.logical_box.Elements();
    // Elements that are stored twice (by replicas) are taken where they come first.
    for (std::size_t i = 0; held != rows.end() && i < held->second.size() && missing > 0; ++i) {
      const std::optional<Box> common = Intersect(row.logical_box, held->second[i].row->logical_box);
      if (!common) continue;
      pieces.push_back(PieceOf(*common, stored, held->second[i], row, local, BaseOf(row.local)));
      missing -= common->Elements();
    }
    if (missing > 0) {
      return Status::FailedPrecondition("not_covered", fmt::format("{} elements of {} {} are not stored", missing,
                                                                   local.name, row.local_box.ToString()));
    }
  }
  return CopyInFileOrder(stored, std::move(pieces));
}

}  // namespace bascule
