// Full tensors as one session reads them: as if one sending rank held the model, while it has a window of it.
//
// Thread-safety: as WeightSource; one reader at a time has memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "bridge/send/weight_source.h"
#include "trainer_side/gather/tensor_gatherer.h"

namespace bascule {

class GatheredSource final : public WeightSource {
 public:
  // `full` is the layout that the connection said Hello with: one rank that holds every tensor, in the trainer's types.
  GatheredSource(TensorGatherer& gatherer, Layout full);

  // As `full`, but in the wire types, which the holders convert to.
  const Layout& layout() const override { return layout_; }
  const std::byte* Base(int sender_rank, int tensor) const override;
  std::unique_ptr<BoxReader> Read(std::vector<SourceBox> boxes) const override;
  std::optional<TensorDigest> HoldersDigest(const TensorSpec& tensor) const override;
  std::string WaitsFor() const override { return gatherer_.WaitsFor(); }
  void StopReading() const override { stop_.request_stop(); }

 private:
  TensorGatherer& gatherer_;
  Layout layout_;
  std::vector<std::int32_t> planned_;  // per tensor of the layout: its number in the gatherer's plan, or -1
  std::vector<std::byte> names_;       // one per tensor: its address stands for the tensor, wherever that lies
  mutable std::stop_source stop_;
};

}  // namespace bascule
