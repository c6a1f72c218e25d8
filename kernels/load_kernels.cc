#include "device/backend.h"
#include "kernels/device_kernels.h"

namespace bascule {

Result<const DeviceKernels*> LoadDeviceKernels() {
  ASSIGN_OR_RETURN(DeviceBackend* const backend, LoadCudaBackend());
  const auto kernels = reinterpret_cast<const DeviceKernels* (*)()>(backend->Part("kernels"));
  if (kernels == nullptr) return Status::FailedPrecondition("backend_mismatch", "the module has no kernels");
  return kernels();
}

}  // namespace bascule
