#include <algorithm>
#include <numeric>

#include "bridge/plan/slicing_internal.h"

namespace bascule {
namespace {

class Balancer {
 public:
  Balancer(const Slicing& slicing, std::size_t sender_ranks)
      : slicing_(slicing), load_(sender_ranks), chosen_(slicing.parts.size()) {}

  // Parts with the fewest holders come first, so that parts which many ranks hold fill up what those leave uneven.
  void AssignEach() {
    std::vector<std::size_t> order(slicing_.parts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return HoldersOf(a).size() < HoldersOf(b).size(); });
    for (const std::size_t part : order) {
      chosen_[part] = LightestHolder(part);
      load_[static_cast<std::size_t>(chosen_[part].rank)] += BytesOf(part);
    }
  }

  // Moves single parts to lighter holders while that helps. Every move lowers the sum of the squared loads, so this
  // ends; the limit on rounds bounds the time of layouts whose replicas overlap in unusual ways.
  void Improve() {
    constexpr int kRoundsMax = 64;
    bool moved = true;
    for (int round = 0; round < kRoundsMax && moved; ++round) {
      moved = false;
      for (std::size_t part = 0; part < chosen_.size(); ++part) moved = MoveToLighter(part) || moved;
    }
  }

  std::vector<RowRef> Take() { return std::move(chosen_); }

 private:
  const std::vector<RowRef>& HoldersOf(std::size_t part) const {
    return slicing_.holder_sets[static_cast<std::size_t>(slicing_.parts[part].holders)];
  }
  std::int64_t BytesOf(std::size_t part) const { return slicing_.parts[part].wire_bytes; }
  std::int64_t LoadOf(const RowRef& row) const { return load_[static_cast<std::size_t>(row.rank)]; }

  const RowRef& LightestHolder(std::size_t part) const {
    const std::vector<RowRef>& holders = HoldersOf(part);
    return *std::min_element(holders.begin(), holders.end(),
                             [&](const RowRef& a, const RowRef& b) { return LoadOf(a) < LoadOf(b); });
  }

  bool MoveToLighter(std::size_t part) {
    if (HoldersOf(part).size() < 2) return false;
    const RowRef& lightest = LightestHolder(part);
    if (LoadOf(lightest) + BytesOf(part) >= LoadOf(chosen_[part])) return false;
    load_[static_cast<std::size_t>(chosen_[part].rank)] -= BytesOf(part);
    load_[static_cast<std::size_t>(lightest.rank)] += BytesOf(part);
    chosen_[part] = lightest;
    return true;
  }

  const Slicing& slicing_;
  std::vector<std::int64_t> load_;  // bytes per sending rank
  std::vector<RowRef> chosen_;      // per part
};

}  // namespace

std::vector<RowRef> BalanceSenders(const Slicing& slicing, std::size_t sender_ranks) {
  Balancer balancer(slicing, sender_ranks);
  balancer.AssignEach();
  balancer.Improve();
  return balancer.Take();
}

std::vector<RowRef> TakeFromTwins(const Slicing& slicing) {
  std::vector<RowRef> chosen(slicing.parts.size());
  for (const Run& run : slicing.runs) {
    const std::vector<RowRef>& holders = slicing.holder_sets[static_cast<std::size_t>(run.holders)];
    const auto twin = std::find_if(holders.begin(), holders.end(),
                                   [&](const RowRef& holder) { return holder.rank == run.engine.rank; });
    for (std::size_t i = 0; i < run.part_count; ++i) chosen[run.first_part + i * run.part_step] = *twin;
  }
  return chosen;
}

}  // namespace bascule
