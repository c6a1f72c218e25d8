#include "engine_side/decode/decode_devices.h"

#include <algorithm>

#include "base/log.h"
#include "device/backend.h"
#include "device/communicator.h"

namespace bascule {
namespace {

constexpr Duration kJoinPatience = std::chrono::seconds(60);

// Null: one rank, or no library that could; then ranks copy from each other.
Result<std::shared_ptr<DeviceCollective>> CollectiveOf(const std::vector<Device*>& devices) {
  std::vector<Device*> distinct = devices;
  std::ranges::sort(distinct);
  const bool shared = std::ranges::adjacent_find(distinct) != distinct.end();
  if (devices.size() < 2 || shared) return std::shared_ptr<DeviceCollective>();
  const Result<Communicators*> nccl = LoadCommunicators();
  if (nccl.status().reason() == "no_nccl" || nccl.status().reason() == "nccl_too_old") {
    LogWarn("sums_without_nccl", "reason={} message={}", nccl.status().reason(), nccl.status().message());
    return std::shared_ptr<DeviceCollective>();
  }
  RETURN_IF_ERROR(nccl.status());
  Clock& clock = Clock::Real();
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceCollective> made,
                   (*nccl)->MakeCollective(devices, Deadline::After(clock, kJoinPatience), clock));
  return std::shared_ptr<DeviceCollective>(std::move(made));
}

}  // namespace

Result<DecodeDevices> DecodeDevices::Open(std::span<const int> ordinals) {
  DecodeDevices opened;
  ASSIGN_OR_RETURN(DeviceBackend* const backend, LoadCudaBackend());
  for (const int ordinal : ordinals) {
    ASSIGN_OR_RETURN(Device* const device, backend->Open(ordinal));
    opened.devices.push_back(device);
  }
  ASSIGN_OR_RETURN(opened.kernels, LoadDeviceKernels());
  const auto gemm = reinterpret_cast<decltype(&bascule_cuda_gemm)>(backend->Part("gemm"));
  if (gemm == nullptr) return Status::FailedPrecondition("backend_mismatch", "the module has no part 'gemm'");
  opened.gemm = gemm();
  ASSIGN_OR_RETURN(opened.collective, CollectiveOf(opened.devices));
  return opened;
}

std::string DecodeDevices::Name() const {
  if (devices.empty()) return "cpu";
  std::string name;
  for (const Device* device : devices) {
    name += fmt::format("{}{}", name.empty() ? "cuda:" : ",", device->description().ordinal);
  }
  return name;
}

}  // namespace bascule
