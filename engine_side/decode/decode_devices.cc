#include "engine_side/decode/decode_devices.h"

#include "device/backend.h"

namespace bascule {
namespace {

template <typename Entry>
Status FindPart(DeviceBackend& backend, const char* part, Entry& found) {
  found = reinterpret_cast<Entry>(backend.Part(part));
  if (found != nullptr) return OkStatus();
  return Status::FailedPrecondition("backend_mismatch", fmt::format("the module has no part '{}'", part));
}

}  // namespace

Result<DecodeDevices> DecodeDevices::Open(std::span<const int> ordinals) {
  DecodeDevices opened;
  ASSIGN_OR_RETURN(DeviceBackend* const backend, LoadCudaBackend());
  for (const int ordinal : ordinals) {
    ASSIGN_OR_RETURN(Device* const device, backend->Open(ordinal));
    opened.devices.push_back(device);
  }
  decltype(&bascule_cuda_kernels) kernels = nullptr;
  decltype(&bascule_cuda_gemm) gemm = nullptr;
  RETURN_IF_ERROR(FindPart(*backend, "kernels", kernels));
  RETURN_IF_ERROR(FindPart(*backend, "gemm", gemm));
  opened.kernels = kernels();
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
