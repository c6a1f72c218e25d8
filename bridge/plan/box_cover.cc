#include "bridge/plan/box_cover_internal.h"

#include <algorithm>
#include <map>

namespace bascule {
namespace {

using Members = std::vector<std::int32_t>;  // indices of boxes

std::int64_t EndOf(const Box& box, int d) { return box.offset[d] + box.extent[d]; }

// The borders in dimension `d` that `members` have inside `region`, with the region's own.
std::vector<std::int64_t> BordersIn(const Box& region, std::span<const Box> boxes, const Members& members, int d) {
  std::vector<std::int64_t> borders = {region.offset[d], EndOf(region, d)};
  for (const std::int32_t member : members) {
    const Box& box = boxes[static_cast<std::size_t>(member)];
    borders.push_back(std::clamp(box.offset[d], borders[0], borders[1]));
    borders.push_back(std::clamp(EndOf(box, d), borders[0], borders[1]));
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  return borders;
}

// Calls visit(part, members of it) for disjoint parts of `region` until one call returns false; every member of a part
// has all its elements. `members` overlap `region` in the dimensions before `d`. False when a call did.
template <typename Visit>
bool ForEachPart(const Box& region, std::span<const Box> boxes, Members members, int d, const Visit& visit) {
  const auto box_of = [&](std::int32_t member) -> const Box& { return boxes[static_cast<std::size_t>(member)]; };
  if (std::all_of(members.begin(), members.end(), [&](std::int32_t m) { return Contains(box_of(m), region); })) {
    return visit(region, members);
  }
  const std::vector<std::int64_t> borders = BordersIn(region, boxes, members, d);
  std::sort(members.begin(), members.end(), [&](std::int32_t a, std::int32_t b) {
    return std::pair(box_of(a).offset[d], a) < std::pair(box_of(b).offset[d], b);
  });
  Members active;
  std::size_t next = 0;
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    std::erase_if(active, [&](std::int32_t m) { return EndOf(box_of(m), d) <= borders[i]; });
    for (; next < members.size() && box_of(members[next]).offset[d] <= borders[i]; ++next) {
      if (EndOf(box_of(members[next]), d) > borders[i]) active.push_back(members[next]);
    }
    Box part = region;
    part.offset[d] = borders[i];
    part.extent[d] = borders[i + 1] - borders[i];
    if (!ForEachPart(part, boxes, active, d + 1, visit)) return false;
  }
  return true;
}

Members AllOf(std::span<const Box> boxes) {
  Members members(boxes.size());
  for (std::size_t i = 0; i < boxes.size(); ++i) members[i] = static_cast<std::int32_t>(i);
  return members;
}

Box BoundsOf(std::span<const Box> boxes) {
  Box bounds = boxes.front();
  for (const Box& box : boxes) {
    for (int d = 0; d < bounds.dims(); ++d) {
      const std::int64_t begin = std::min(bounds.offset[d], box.offset[d]);
      bounds.extent[d] = std::max(EndOf(bounds, d), EndOf(box, d)) - begin;
      bounds.offset[d] = begin;
    }
  }
  return bounds;
}

// Cells of boxes that overlap: one for each part between borders.
std::vector<Cell> CutAtBorders(const std::vector<Box>& distinct, const std::vector<Cell>& whole) {
  std::vector<Cell> cells;
  ForEachPart(BoundsOf(distinct), distinct, AllOf(distinct), 0, [&](const Box& part, const Members& members) {
    if (members.empty()) return true;
    Cell cell{part, {}};
    for (const std::int32_t member : members) {
      const std::vector<std::int32_t>& holders = whole[static_cast<std::size_t>(member)].holders;
      cell.holders.insert(cell.holders.end(), holders.begin(), holders.end());
    }
    std::sort(cell.holders.begin(), cell.holders.end());
    cells.push_back(std::move(cell));
    return true;
  });
  return cells;
}

}  // namespace

std::optional<CoverBreach> FindBreach(const Box& region, std::span<const Box> boxes) {
  if (region.Empty()) return std::nullopt;
  std::optional<CoverBreach> breach;
  ForEachPart(region, boxes, AllOf(boxes), 0, [&](const Box& part, const Members& members) {
    if (members.size() == 1) return true;
    breach = CoverBreach{members.empty() ? CoverBreach::Kind::kHole : CoverBreach::Kind::kTwice, part};
    return false;
  });
  return breach;
}

std::vector<Cell> DisjointCells(std::span<const Box> boxes) {
  std::map<Box, std::vector<std::int32_t>> equals;
  for (std::size_t i = 0; i < boxes.size(); ++i) equals[boxes[i]].push_back(static_cast<std::int32_t>(i));
  std::vector<Cell> cells;
  std::vector<Box> distinct;
  for (auto& [box, holders] : equals) {
    distinct.push_back(box);
    cells.push_back({box, std::move(holders)});
  }
  if (distinct.size() < 2) return cells;
  const bool disjoint = ForEachPart(BoundsOf(distinct), distinct, AllOf(distinct), 0,
                                    [](const Box&, const Members& members) { return members.size() < 2; });
  return disjoint ? cells : CutAtBorders(distinct, cells);
}

}  // namespace bascule
