#include "device/cuda/event.h"

#include <bit>

#include "device/cuda/error.h"

namespace bascule {
namespace {

Result<std::unique_ptr<CudaEvent>> MakeWith(unsigned flags, const DeviceDescription& device) {
  USE_DEVICE(device);
  cudaEvent_t event = nullptr;
  RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags, device, &event, cudaEventDisableTiming | flags);
  return std::make_unique<CudaEvent>(event, device);
}

}  // namespace

// Work that an event still marks goes on; the event is released behind it.
CudaEvent::~CudaEvent() {
  const UseDevice use(device_.ordinal);
  if (owner_ == Owner::kThis) static_cast<void>(CudaStatus(cudaEventDestroy(event_), "cudaEventDestroy"));
}

Result<bool> CudaEvent::Passed() {
  USE_DEVICE(device_);
  const cudaError_t error = cudaEventQuery(event_);
  if (error == cudaErrorNotReady) return false;
  RETURN_IF_ERROR(CudaStatus(error, "cudaEventQuery", device_));
  return true;
}

Result<std::unique_ptr<CudaEvent>> MakeCudaEvent(const DeviceDescription& device) { return MakeWith(0, device); }

Result<SharedEvent> MakeSharedCudaEvent(const DeviceDescription& device) {
  USE_DEVICE(device);
  ASSIGN_OR_RETURN(std::unique_ptr<CudaEvent> event, MakeWith(cudaEventInterprocess, device));
  cudaIpcEventHandle_t handle{};
  RETURN_IF_CUDA_ERROR(cudaIpcGetEventHandle, device, &handle, event->get());
  return SharedEvent{std::move(event), std::bit_cast<EventHandle>(handle)};
}

Result<std::unique_ptr<CudaEvent>> OpenCudaEvent(const EventHandle& handle, const DeviceDescription& device) {
  USE_DEVICE(device);
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(OpenStatus(cudaIpcOpenEventHandle(&event, std::bit_cast<cudaIpcEventHandle_t>(handle)),
                             "cudaIpcOpenEventHandle", device));
  return std::make_unique<CudaEvent>(event, device);
}

Status OpenStatus(cudaError_t error, std::string_view call, const DeviceDescription& device) {
  const Status status = CudaStatus(error, call, device);
  switch (error) {
    // The driver's "invalid context": a process cannot open what it made itself.
    case cudaErrorDeviceUninitialized:
      return Status::FailedPrecondition("same_process", status.message());
    // Of another device's memory.
    case cudaErrorPeerAccessUnsupported:
    case cudaErrorTooManyPeers:
      return Status::FailedPrecondition("no_peer_access", status.message());
    case cudaErrorInvalidResourceHandle:
    case cudaErrorMapBufferObjectFailed:
    case cudaErrorInvalidValue:
      return Status::Unavailable("peer_lost", status.message());
    default:
      return status;
  }
}

}  // namespace bascule
