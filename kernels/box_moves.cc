#include "kernels/box_moves.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "kernels/box_runs_internal.h"

namespace bascule {
namespace {

constexpr std::int64_t kTileBytes = 16384;
constexpr std::int64_t kTileSegmentsMax = 32;  // a lane of a warp finds one
constexpr std::int64_t kShortRunBytes = 64;    // of the 512 that a warp takes at once

int ConvertedBytes(const BoxMove& move) {
  switch (move.conversion) {
    case Conversion::kNone:
      return move.item_bytes;
    case Conversion::kF32ToBf16:
      return move.item_bytes == 4 ? 2 : 0;
    case Conversion::kBf16ToF32:
      return move.item_bytes == 2 ? 4 : 0;
  }
  return 0;
}

Status Check(const BoxMove& move, int converted_bytes) {
  const bool known = move.item_bytes == 1 || move.item_bytes == 2 || move.item_bytes == 4 || move.item_bytes == 8;
  if (!known || converted_bytes == 0 || (move.fills && move.conversion != Conversion::kNone)) {
    return Status::InvalidArgument(
        "item_bytes", fmt::format("{} bytes, conversion {}", move.item_bytes, static_cast<int>(move.conversion)));
  }
  if (move.source_bytes % move.item_bytes != 0 || move.target_bytes % converted_bytes != 0) {
    return Status::InvalidArgument(
        "misaligned", fmt::format("source at {}, target at {}, elements of {} and {} bytes", move.source_bytes,
                                  move.target_bytes, move.item_bytes, converted_bytes));
  }
  return OkStatus();
}

// How many chunks the run may touch that begins farthest into one: all begin at one offset modulo what every stride is
// a multiple of.
std::int64_t SegmentsPerRun(const MoveEntry& entry) {
  std::int64_t step = kDigestChunkBytes;
  for (std::size_t d = 0; d < static_cast<std::size_t>(entry.dims); ++d) {
    step = std::gcd(step, entry.stride[MoveEntry::kLogical][d]);
  }
  const std::int64_t farthest = kDigestChunkBytes - step + entry.first[MoveEntry::kLogical] % step;
  return (farthest + entry.run_bytes + kDigestChunkBytes - 1) / kDigestChunkBytes;
}

std::uint64_t Repeated(std::uint64_t element, int item_bytes) {
  if (item_bytes < 8) element &= (std::uint64_t{1} << 8 * item_bytes) - 1;
  for (int bytes = item_bytes; bytes < 8; bytes *= 2) element |= element << 8 * bytes;
  return element;
}

// Dimensions and strides in bytes. Elements that lie apart are runs of their own, one more dimension.
void SetRuns(const BoxMove& move, int converted_bytes, MoveEntry& entry) {
  const BoxRuns<MoveEntry::kPlaces> runs(move.shape,
                                         {move.fills ? move.target : move.source, move.target, move.logical});
  const std::array<std::int64_t, MoveEntry::kPlaces> item = {move.fills ? 0 : move.item_bytes, converted_bytes,
                                                             converted_bytes};
  const std::array<std::int64_t, MoveEntry::kPlaces> base = {move.source_bytes, move.target_bytes, 0};
  const auto outer = runs.outer_dims();
  bool together = true;
  for (std::size_t p = 0; p < MoveEntry::kPlaces; ++p) {
    together = together && runs.run_stride(p) == 1;
    entry.first[p] = base[p] + runs.first(p) * item[p];
    for (std::size_t d = 0; d < outer; ++d) entry.stride[p][d] = runs.outer_stride(d, p) * item[p];
  }
  for (std::size_t d = 0; d < outer; ++d) entry.count[d] = runs.outer_count(d);
  entry.dims = static_cast<std::int32_t>(outer);
  entry.run_bytes = runs.run_elements() * converted_bytes;
  if (!together) {
    for (std::size_t p = 0; p < MoveEntry::kPlaces; ++p) entry.stride[p][outer] = runs.run_stride(p) * item[p];
    entry.count[outer] = runs.run_elements();
    ++entry.dims;
    entry.run_bytes = converted_bytes;
  }
}

}  // namespace

Status BoxMoveTable::Add(const BoxMove& move) {
  const int converted_bytes = ConvertedBytes(move);
  RETURN_IF_ERROR(Check(move, converted_bytes));
  MoveEntry entry;
  SetRuns(move, converted_bytes, entry);
  entry.key = move.key;
  entry.conversion = move.conversion;
  entry.fills = move.fills;
  entry.element = Repeated(move.element, converted_bytes);
  entry.item_bytes = static_cast<std::uint8_t>(converted_bytes);
  entry.lane_each = entry.run_bytes <= kShortRunBytes;
  entry.segments_per_run = SegmentsPerRun(entry);
  entry.segments =
      move.shape.Elements() * converted_bytes / std::max<std::int64_t>(entry.run_bytes, 1) * entry.segments_per_run;
  const std::int64_t filling = kTileBytes / std::clamp<std::int64_t>(entry.run_bytes, 1, kDigestChunkBytes);
  entry.tile_segments =
      static_cast<std::int32_t>(entry.lane_each ? kTileSegmentsMax : std::min(filling, kTileSegmentsMax));
  entry.first_tile = tiles_;
  tiles_ += (entry.segments + entry.tile_segments - 1) / entry.tile_segments;
  entries_.push_back(entry);
  return OkStatus();
}

}  // namespace bascule
