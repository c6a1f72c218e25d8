// An engine's live version as a source, so that it can be sent to another engine: whoever holds a version can send it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "bridge/send/weight_source.h"
#include "engine_side/weight_lease.h"

namespace bascule {

// Holds the lease: while it lives the version stays in memory, and the slot is not written. What lies on devices is
// read from there a few megabytes at a time, and packed by the host.
class LiveSource final : public WeightSource {
 public:
  // `layout` is borrowed: the receiver's.
  LiveSource(WeightLease lease, const Layout& layout) : lease_(std::move(lease)), layout_(layout) {}

  const WeightVersion& version() const { return lease_.version(); }
  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int sender_rank, int tensor) const override {
    return lease_.Tensor(sender_rank, tensor).data();
  }
  std::unique_ptr<BoxReader> Read(std::vector<SourceBox> boxes) const override;

 private:
  int RankOf(const std::byte* base) const;

  const WeightLease lease_;
  const Layout& layout_;
};

}  // namespace bascule
