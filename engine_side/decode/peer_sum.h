// Sums over ranks without a library: every rank copies what the others have to its own device and adds all of it, in
// the order of ranks. For ranks of one process; bytes grow with the square of the ranks, so it is for few.
//
// Thread-safety: confined to the thread that decodes.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "device/collective.h"
#include "device/device.h"
#include "kernels/device_kernels.h"

namespace bascule {

class PeerSum final : public DeviceCollective {
 public:
  // Of at most `most` floats a rank. Devices and kernels outlive it.
  //
  // Errors of the devices
  static Result<std::unique_ptr<PeerSum>> Create(std::span<Device* const> devices, const DeviceKernels& kernels,
                                                 std::int64_t most);
  std::string_view name() const override { return "peer_copy"; }
  Status AllReduceSum(std::span<const CollectivePart> parts, std::int64_t count) override;

 private:
  struct Rank {
    std::unique_ptr<DeviceBuffer> gathered;  // the parts of all ranks, side by side
    std::unique_ptr<DeviceEvent> made, taken;
  };
  PeerSum(const DeviceKernels& kernels, std::int64_t most) : kernels_(kernels), most_(most) {}
  float* Gathered(const Rank& at, std::size_t of) const {
    return reinterpret_cast<float*>(at.gathered->bytes().data()) + static_cast<std::int64_t>(of) * most_;
  }

  const DeviceKernels& kernels_;
  const std::int64_t most_;
  std::vector<Rank> ranks_;
};

}  // namespace bascule
