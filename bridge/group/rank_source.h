// One trainer rank among many: the memory of this process, as the rank that it is in the layout of its group.
//
// Thread-safety: as the source it wraps.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bridge/send/weight_source.h"

namespace bascule {

class RankSource final : public WeightSource {
 public:
  // `own`, borrowed, has one rank. Of the others nothing is known here: layout() shows them without tensors.
  RankSource(const WeightSource& own, int rank, int world_size) : own_(own), rank_(rank), layout_(own.layout()) {
    RankLayout mine = std::move(layout_.ranks.front());
    layout_.ranks.assign(static_cast<std::size_t>(world_size), RankLayout{});
    layout_.ranks[static_cast<std::size_t>(rank)] = std::move(mine);
  }

  const Layout& layout() const override { return layout_; }
  bool Holds(int sender_rank) const override { return sender_rank == rank_; }
  const std::byte* Base(int /*sender_rank*/, int tensor) const override { return own_.Base(0, tensor); }
  WeightDevice* device() const override { return own_.device(); }
  std::unique_ptr<BoxReader> Read(std::vector<SourceBox> boxes) const override { return own_.Read(std::move(boxes)); }
  void Release(std::span<const std::byte> memory) const override { own_.Release(memory); }

 private:
  const WeightSource& own_;
  const int rank_;
  Layout layout_;
};

}  // namespace bascule
