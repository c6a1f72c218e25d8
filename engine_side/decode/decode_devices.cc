#include "engine_side/decode/decode_devices.h"

#include <algorithm>

#include "base/log.h"
#include "device/backend.h"
#include "device/communicator.h"

namespace bascule {
namespace {

constexpr Duration kJoinPatience = std::chrono::seconds(60);

std::shared_ptr<DeviceCollective> WithoutNccl(const Status& why) {
  LogWarn("sums_without_nccl", "reason={} message={}", why.reason(), why.message());
  return nullptr;
}

// Null: one rank, no library that could, or no room for one more communicator; then ranks copy from each other.
Result<std::shared_ptr<DeviceCollective>> CollectiveOf(const std::vector<Device*>& devices) {
  std::vector<Device*> distinct = devices;
  std::ranges::sort(distinct);
  const bool shared = std::ranges::adjacent_find(distinct) != distinct.end();
  if (devices.size() < 2 || shared) return std::shared_ptr<DeviceCollective>();
  const Result<Communicators*> nccl = LoadCommunicators();
  const Status opened = nccl.status();
  if (opened.reason() == "no_nccl" || opened.reason() == "nccl_too_old") return WithoutNccl(opened);
  RETURN_IF_ERROR(opened);
  Clock& clock = Clock::Real();
  Result<std::unique_ptr<DeviceCollective>> made =
      (*nccl)->MakeCollective(devices, Deadline::After(clock, kJoinPatience), clock);
  if (made.status().reason() == "nccl_too_many") return WithoutNccl(made.status());
  RETURN_IF_ERROR(made.status());
  return std::shared_ptr<DeviceCollective>(std::move(*made));
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
