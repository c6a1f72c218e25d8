#include <fmt/format.h>

#include <algorithm>

#include "base/checked_math.h"
#include "trainer_side/layouts/megatron_rank_internal.h"

namespace bascule {
namespace {

// Rows [begin, end) of pieces that lie one behind the other.
std::vector<RowPiece> RangeOfPieces(std::span<const RowPiece> pieces, std::int64_t begin, std::int64_t end) {
  std::vector<RowPiece> range;
  std::int64_t at = 0;
  for (const RowPiece& piece : pieces) {
    const std::int64_t first = std::max(begin, at);
    const std::int64_t last = std::min(end, at + piece.rows);
    if (first < last) range.push_back({piece.logical, piece.first_row + first - at, last - first});
    at += piece.rows;
  }
  return range;
}

Status CheckDivides(const std::string& name, std::string_view what, std::int64_t size, CutRank rank) {
  if (size % rank.parts == 0) return OkStatus();
  return Status::InvalidArgument("does_not_divide",
                                 fmt::format("{}: {} {} do not divide among {} ranks", name, size, what, rank.parts));
}

}  // namespace

Status MegatronRank::AddPieces(std::string name, std::span<const RowPiece> pieces) {
  const TensorSpec& first = SpecOf(pieces.front().logical);
  Dims shape = first.shape;
  std::int64_t row = 0;
  for (const RowPiece& piece : pieces) {
    const TensorSpec& spec = SpecOf(piece.logical);
    if (spec.dtype != first.dtype) {
      return Status::InvalidArgument(
          "mixed_dtypes", fmt::format("{} cannot hold both {} {} and {} {}", name, DTypeName(first.dtype), first.name,
                                      DTypeName(spec.dtype), spec.name));
    }
    Box local_box = Box::Whole(spec.shape);
    local_box.offset[0] = row;
    local_box.extent[0] = piece.rows;
    Box logical_box = local_box;
    logical_box.offset[0] = piece.first_row;
    layout_.rows.push_back(
        {.local = NextLocal(), .local_box = local_box, .logical = piece.logical, .logical_box = logical_box});
    row += piece.rows;
  }
  shape[0] = row;
  layout_.tensors.push_back({.name = std::move(name), .dtype = first.dtype, .shape = shape, .stride = {}});
  return OkStatus();
}

Status MegatronRank::AddCutOfPieces(std::string name, std::span<const RowPiece> pieces, CutRank rank) {
  std::int64_t rows = 0;
  for (const RowPiece& piece : pieces) rows += piece.rows;
  RETURN_IF_ERROR(CheckDivides(name, "rows", rows, rank));
  const std::int64_t share = rows / rank.parts;
  return AddPieces(std::move(name), RangeOfPieces(pieces, share * rank.part, share * (rank.part + 1)));
}

Status MegatronRank::AddPiecesCut(std::string name, std::span<const RowPiece> pieces, CutRank rank) {
  std::vector<RowPiece> shares;
  for (const RowPiece& piece : pieces) {
    RETURN_IF_ERROR(CheckDivides(name, "rows", piece.rows, rank));
    const std::int64_t share = piece.rows / rank.parts;
    shares.push_back({piece.logical, piece.first_row + share * rank.part, share});
  }
  return AddPieces(std::move(name), shares);
}

Status MegatronRank::AddColumns(std::string name, std::int32_t logical, CutRank rank) {
  const TensorSpec& spec = SpecOf(logical);
  RETURN_IF_ERROR(CheckDivides(name, "columns", spec.shape[1], rank));
  Box box = Box::Whole(spec.shape);
  box.extent[1] /= rank.parts;
  box.offset[1] = box.extent[1] * rank.part;
  layout_.rows.push_back(
      {.local = NextLocal(), .local_box = Box::Whole(box.extent), .logical = logical, .logical_box = box});
  layout_.tensors.push_back({.name = std::move(name), .dtype = spec.dtype, .shape = box.extent, .stride = {}});
  return OkStatus();
}

void MegatronRank::AddVocabulary(std::string name, std::int32_t logical, std::int64_t multiple, CutRank rank) {
  const TensorSpec& spec = SpecOf(logical);
  const std::int64_t share = RoundUp(spec.shape[0], multiple * rank.parts) / rank.parts;
  Box held = Box::Whole(spec.shape);
  held.offset[0] = std::min(share * rank.part, spec.shape[0]);
  held.extent[0] = std::min(share, spec.shape[0] - held.offset[0]);
  if (!held.Empty()) {
    layout_.rows.push_back(
        {.local = NextLocal(), .local_box = Box::Whole(held.extent), .logical = logical, .logical_box = held});
  }
  Dims shape = spec.shape;
  shape[0] = share;
  layout_.tensors.push_back({.name = std::move(name), .dtype = spec.dtype, .shape = shape, .stride = {}});
}

}  // namespace bascule
