#include "engine_side/decode/decode_devices.h"

#include "device/backend.h"

namespace bascule {
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
