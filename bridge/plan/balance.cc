#include <algorithm>
#include <numeric>

#include "bridge/plan/slicing_internal.h"

namespace bascule {
namespace {

class Balancer {
 public:
  Balancer(const Slicing& slicing, std::size_t sender_ranks)
      : slicing_(slicing), load_(sender_ranks), chosen_(slicing.pieces.size()) {}

  // Pieces with the fewest holders come first, so that pieces which many ranks hold fill up what those leave uneven.
  void AssignEach() {
    std::vector<std::size_t> order(slicing_.pieces.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return HoldersOf(a).size() < HoldersOf(b).size(); });
    for (const std::size_t piece : order) {
      chosen_[piece] = LightestHolder(piece);
      load_[static_cast<std::size_t>(chosen_[piece].rank)] += BytesOf(piece);
    }
  }

  // Moves single pieces to lighter holders while that helps. Every move lowers the sum of the squared loads, so this
  // ends; the limit on rounds bounds the time of layouts whose replicas overlap in unusual ways.
  void Improve() {
    constexpr int kRoundsMax = 64;
    bool moved = true;
    for (int round = 0; round < kRoundsMax && moved; ++round) {
      moved = false;
      for (std::size_t piece = 0; piece < chosen_.size(); ++piece) moved = MoveToLighter(piece) || moved;
    }
  }

  std::vector<RowRef> Take() { return std::move(chosen_); }

 private:
  const std::vector<RowRef>& HoldersOf(std::size_t piece) const {
    return slicing_.holder_sets[static_cast<std::size_t>(slicing_.pieces[piece].holders)];
  }
  std::int64_t BytesOf(std::size_t piece) const { return slicing_.pieces[piece].wire_bytes; }
  std::int64_t LoadOf(const RowRef& row) const { return load_[static_cast<std::size_t>(row.rank)]; }

  const RowRef& LightestHolder(std::size_t piece) const {
    const std::vector<RowRef>& holders = HoldersOf(piece);
    return *std::min_element(holders.begin(), holders.end(),
                             [&](const RowRef& a, const RowRef& b) { return LoadOf(a) < LoadOf(b); });
  }

  bool MoveToLighter(std::size_t piece) {
    if (HoldersOf(piece).size() < 2) return false;
    const RowRef& lightest = LightestHolder(piece);
    if (LoadOf(lightest) + BytesOf(piece) >= LoadOf(chosen_[piece])) return false;
    load_[static_cast<std::size_t>(chosen_[piece].rank)] -= BytesOf(piece);
    load_[static_cast<std::size_t>(lightest.rank)] += BytesOf(piece);
    chosen_[piece] = lightest;
    return true;
  }

  const Slicing& slicing_;
  std::vector<std::int64_t> load_;  // bytes per sending rank
  std::vector<RowRef> chosen_;      // per piece
};

}  // namespace

std::vector<RowRef> BalanceSenders(const Slicing& slicing, std::size_t sender_ranks) {
  Balancer balancer(slicing, sender_ranks);
  balancer.AssignEach();
  balancer.Improve();
  return balancer.Take();
}

std::vector<RowRef> TakeFromTwins(const Slicing& slicing) {
  std::vector<RowRef> chosen;
  chosen.reserve(slicing.pieces.size());
  for (const Piece& piece : slicing.pieces) {
    const std::vector<RowRef>& holders = slicing.holder_sets[static_cast<std::size_t>(piece.holders)];
    chosen.push_back(*std::find_if(holders.begin(), holders.end(),
                                   [&](const RowRef& holder) { return holder.rank == piece.engine.rank; }));
  }
  return chosen;
}

}  // namespace bascule
