#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

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

  // Where replicas overlap in a chain (a and b hold some boxes, b and c others) each rank may have less than a part
  // more than the next, so that no single move helps, and the first far more than the last. Then every rank of the
  // chain gives the next one a part.
  void PassAlongChains() {
    constexpr int kChainsMax = 1 << 12;  // bounds the time, as above
    for (const Part& part : slicing_.parts) largest_ = std::max(largest_, part.wire_bytes);
    const auto [least, most] = std::minmax_element(load_.begin(), load_.end());
    if (*most - *least <= largest_) return;
    IndexMovable();
    for (int chain = 0; chain < kChainsMax && RelieveBusiest(); ++chain) continue;
  }

  std::vector<RowRef> Take() { return std::move(chosen_); }

 private:
  // How a rank was found: `from` has a part that `to` holds too.
  struct Hop {
    std::int32_t from = 0;
    std::int32_t holders = 0;
    RowRef to;
  };
  using Sized = std::pair<std::int64_t, std::size_t>;  // bytes of a part, and the part

  const std::vector<RowRef>& HoldersOf(std::size_t part) const {
    return slicing_.holder_sets[static_cast<std::size_t>(slicing_.parts[part].holders)];
  }
  std::int64_t BytesOf(std::size_t part) const { return slicing_.parts[part].wire_bytes; }
  std::int64_t LoadAt(std::int32_t rank) const { return load_[static_cast<std::size_t>(rank)]; }
  std::int64_t LoadOf(const RowRef& row) const { return LoadAt(row.rank); }

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

  void IndexMovable() {
    movable_.resize(load_.size());
    for (std::size_t part = 0; part < chosen_.size(); ++part) {
      if (HoldersOf(part).size() > 1)
        PartsAt(chosen_[part].rank, slicing_.parts[part].holders).emplace(BytesOf(part), part);
    }
  }
  std::set<Sized>& PartsAt(std::int32_t rank, std::int32_t holders) {
    return movable_[static_cast<std::size_t>(rank)][holders];
  }

  // Looks, from the busiest rank on, for the nearest one that has more than the largest part less, and passes parts
  // there. When there is none, no other choice of senders is better by more than that part.
  bool RelieveBusiest() {
    const auto busiest = static_cast<std::int32_t>(std::max_element(load_.begin(), load_.end()) - load_.begin());
    std::map<std::int32_t, Hop> found = {{busiest, {}}};
    std::vector<std::int32_t> queue = {busiest};
    for (std::size_t next = 0; next < queue.size(); ++next) {
      for (const auto& [holders, parts] : movable_[static_cast<std::size_t>(queue[next])]) {
        if (parts.empty()) continue;
        for (const RowRef& holder : slicing_.holder_sets[static_cast<std::size_t>(holders)]) {
          if (!found.emplace(holder.rank, Hop{queue[next], holders, holder}).second) continue;
          queue.push_back(holder.rank);
          const bool far_less = LoadOf(holder) + largest_ < LoadAt(busiest);
          if (far_less && PassAlong(ChainTo(holder.rank, busiest, found))) return true;
        }
      }
    }
    return false;
  }

  static std::vector<Hop> ChainTo(std::int32_t rank, std::int32_t busiest, const std::map<std::int32_t, Hop>& found) {
    std::vector<Hop> chain;
    for (; rank != busiest; rank = chain.back().from) chain.push_back(found.at(rank));
    std::reverse(chain.begin(), chain.end());
    return chain;
  }

  // Each rank of the chain gives the smallest part with which it stays below what the first one has, or at that where
  // it has as much; so the first has less, and no other one comes to have as much.
  bool PassAlong(const std::vector<Hop>& chain) {
    const std::int64_t most = LoadAt(chain.front().from);
    std::vector<std::size_t> given;
    std::int64_t got = 0;
    for (const Hop& hop : chain) {
      const std::int64_t load = LoadAt(hop.from);
      const std::int64_t least = std::max<std::int64_t>(1, load + got - std::max(load, most - 1));
      const std::set<Sized>& parts = PartsAt(hop.from, hop.holders);
      const auto part = parts.lower_bound({least, 0});
      if (part == parts.end()) return false;
      got = part->first;
      given.push_back(part->second);
    }
    for (std::size_t i = 0; i < chain.size(); ++i) Move(given[i], chain[i].to);
    return true;
  }

  void Move(std::size_t part, const RowRef& to) {
    RowRef& from = chosen_[part];
    const std::int32_t holders = slicing_.parts[part].holders;
    PartsAt(from.rank, holders).erase({BytesOf(part), part});
    PartsAt(to.rank, holders).emplace(BytesOf(part), part);
    load_[static_cast<std::size_t>(from.rank)] -= BytesOf(part);
    load_[static_cast<std::size_t>(to.rank)] += BytesOf(part);
    from = to;
  }

  const Slicing& slicing_;
  std::vector<std::int64_t> load_;                                // bytes per sending rank
  std::vector<RowRef> chosen_;                                    // per part
  std::int64_t largest_ = 0;                                      // part
  std::vector<std::map<std::int32_t, std::set<Sized>>> movable_;  // per rank, of each set of several holders
};

}  // namespace

std::vector<RowRef> BalanceSenders(const Slicing& slicing, std::size_t sender_ranks) {
  Balancer balancer(slicing, sender_ranks);
  balancer.AssignEach();
  balancer.Improve();
  balancer.PassAlongChains();
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
