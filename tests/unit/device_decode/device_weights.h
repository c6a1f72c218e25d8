// A version in the memory of devices, one for each engine rank.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "engine_side/decode/step_weights.h"
#include "tests/unit/decode/tiny_model.h"

namespace bascule {

class DeviceWeights final : public StepWeights {
 public:
  DeviceWeights(const FusedModel& model, std::uint64_t number, std::span<Device* const> devices);
  const WeightVersion& version() const override { return version_; }
  std::span<const std::byte> Tensor(int engine_rank, int tensor) const override {
    return tensors_[static_cast<std::size_t>(engine_rank)][static_cast<std::size_t>(tensor)];
  }
  // Other bytes at the same addresses.
  void Write(const FusedModel& model, std::uint64_t number);

 private:
  std::vector<Device*> devices_;
  std::vector<std::unique_ptr<DeviceBuffer>> memory_;
  std::vector<std::vector<std::span<std::byte>>> tensors_;  // by rank
  WeightVersion version_;
};

}  // namespace bascule
