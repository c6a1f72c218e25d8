// The devices that an engine decodes on, one for each tensor-parallel engine rank, and what computes there.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/collective.h"
#include "device/device.h"
#include "kernels/device_kernels.h"
#include "kernels/gemm_device.h"

namespace bascule {

struct DecodeDevices {
  // The devices of these ordinals, in the order of ranks; one may serve several ranks. Ranks on devices of their own
  // are summed over by NCCL where it is there.
  //
  // Unavailable "no_cuda_backend", "no_cuda_device"; NotFound "no_such_device"; FailedPrecondition "backend_mismatch";
  // errors of NCCL, as Communicators::MakeCollective
  static Result<DecodeDevices> Open(std::span<const int> ordinals);

  bool empty() const { return devices.empty(); }
  std::string Name() const;  // "cuda:0,1", or "cpu"

  std::vector<Device*> devices;            // borrowed; none: the host's processors
  const DeviceKernels* kernels = nullptr;  // of the module that the devices come from
  const DeviceGemmPart* gemm = nullptr;    // likewise
  // Sums over ranks; shared with the decoder, which captures it. Null: PeerSum.
  std::shared_ptr<DeviceCollective> collective;
  ActivationPrecision precision = ActivationPrecision::kFull;
  std::int64_t gemm_workspace_bytes = kGemmWorkspaceBytes;
  bool graphs = true;                                 // steps that only decode are captured and launched as graphs
  Duration step_deadline = std::chrono::seconds(60);  // a device that takes longer for a step is given up
};

}  // namespace bascule
