#include "bridge/group/merge_layouts.h"

#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace bascule {
namespace {

struct Known {
  std::int32_t index = 0;  // in the merged layout
  std::size_t rank = 0;    // that named it first
};

class Merger {
 public:
  Status Add(const Layout& part) {
    const std::size_t rank = merged_.ranks.size();
    std::vector<std::int32_t> merged_index;
    for (const TensorSpec& tensor : part.tensors) {
      const auto [known, is_new] =
          known_.try_emplace(tensor.name, Known{static_cast<std::int32_t>(merged_.tensors.size()), rank});
      merged_index.push_back(known->second.index);
      if (is_new) {
        merged_.tensors.push_back(tensor);
      } else if (const TensorSpec& before = merged_.tensors[static_cast<std::size_t>(known->second.index)];
                 before != tensor) {
        return Differs(tensor, rank, before, known->second.rank);
      }
    }
    RankLayout& added = merged_.ranks.emplace_back(part.ranks.front());
    for (MapRow& row : added.rows) {
      if (row.logical != kFill) row.logical = merged_index[static_cast<std::size_t>(row.logical)];
    }
    return OkStatus();
  }

  Layout Take() { return std::move(merged_); }

 private:
  static Status Differs(const TensorSpec& tensor, std::size_t rank, const TensorSpec& before, std::size_t before_rank) {
    return Status::InvalidArgument(
        "bad_layout", fmt::format("tensor={} is {} {} on trainer rank {} and {} {} on trainer rank {}", tensor.name,
                                  DTypeName(before.dtype), before.shape.ToString(), before_rank,
                                  DTypeName(tensor.dtype), tensor.shape.ToString(), rank));
  }

  Layout merged_;
  std::unordered_map<std::string, Known> known_;
};

}  // namespace

Result<Layout> MergeLayouts(std::span<const Layout* const> parts) {
  Merger merger;
  for (const Layout* part : parts) RETURN_IF_ERROR(merger.Add(*part));
  return merger.Take();
}

Layout PartOf(const Layout& layout, int rank) {
  Layout part{.tensors = {}, .ranks = {layout.ranks[static_cast<std::size_t>(rank)]}};
  std::unordered_map<std::int32_t, std::int32_t> index_of;
  for (MapRow& row : part.ranks.front().rows) {
    if (row.logical == kFill) continue;
    const auto [index, is_new] = index_of.try_emplace(row.logical, static_cast<std::int32_t>(part.tensors.size()));
    if (is_new) part.tensors.push_back(layout.tensors[static_cast<std::size_t>(row.logical)]);
    row.logical = index->second;
  }
  return part;
}

bool ShowsPart(const Layout& layout, int rank, const Layout& part) {
  if (rank < 0 || std::cmp_greater_equal(rank, layout.ranks.size())) return false;
  const RankLayout& shown = layout.ranks[static_cast<std::size_t>(rank)];
  const RankLayout& own = part.ranks.front();
  if (shown.tensors != own.tensors || shown.rows.size() != own.rows.size()) return false;
  for (std::size_t i = 0; i < own.rows.size(); ++i) {
    MapRow row = own.rows[i];
    row.logical = shown.rows[i].logical;
    if (row != shown.rows[i] || (row.logical == kFill) != (own.rows[i].logical == kFill)) return false;
    if (row.logical == kFill) continue;
    const auto tensor = static_cast<std::size_t>(row.logical);
    if (layout.tensors[tensor] != part.tensors[static_cast<std::size_t>(own.rows[i].logical)]) return false;
  }
  return true;
}

}  // namespace bascule
