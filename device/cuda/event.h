// Events of one CUDA device, without timing, which would cost each record a trip to the clock.
//
// Thread-safety: thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "device/device.h"

namespace bascule {

class CudaEvent final : public DeviceEvent {
 public:
  enum class Owner { kThis, kCaller };
  // An event of `device`, which outlives it.
  CudaEvent(cudaEvent_t event, const DeviceDescription& device, Owner owner = Owner::kThis)
      : event_(event), device_(device), owner_(owner) {}
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  Result<bool> Passed() override;
  cudaEvent_t get() const { return event_; }

 private:
  const cudaEvent_t event_;
  const DeviceDescription& device_;
  const Owner owner_;
};

Result<std::unique_ptr<CudaEvent>> MakeCudaEvent(const DeviceDescription& device);
Result<SharedEvent> MakeSharedCudaEvent(const DeviceDescription& device);
Result<std::unique_ptr<CudaEvent>> OpenCudaEvent(const EventHandle& handle, const DeviceDescription& device);

// What CUDA answers to a handle of memory or an event that cannot be opened. OK for cudaSuccess.
Status OpenStatus(cudaError_t error, std::string_view call, const DeviceDescription& device);

}  // namespace bascule
