#include "device/cuda/error.h"

#include <algorithm>
#include <array>

#include "device/cuda/driver.h"

namespace bascule {
namespace {

// After one of these every later call of the process fails too: the context is gone.
constexpr std::array kFatal = {
    cudaErrorIllegalAddress,     cudaErrorLaunchFailure,       cudaErrorAssert,
    cudaErrorHardwareStackError, cudaErrorIllegalInstruction,  cudaErrorMisalignedAddress,
    cudaErrorInvalidPc,          cudaErrorInvalidAddressSpace, cudaErrorECCUncorrectable,
    cudaErrorLaunchTimeout,      cudaErrorNvlinkUncorrectable, cudaErrorContextIsDestroyed,
    cudaErrorContained,          cudaErrorTensorMemoryLeak,    cudaErrorMpsClientTerminated,
    cudaErrorExternalDevice,
};
constexpr std::array kAbsent = {
    cudaErrorNoDevice,
    cudaErrorInsufficientDriver,
    cudaErrorInitializationError,
    cudaErrorDevicesUnavailable,
    cudaErrorSystemNotReady,
    cudaErrorSystemDriverMismatch,
    cudaErrorCompatNotSupportedOnDevice,
};

// The module has no code for this device, nor any that its driver could translate.
constexpr std::array kForeignCode = {
    cudaErrorNoKernelImageForDevice,
    cudaErrorUnsupportedPtxVersion,
};
constexpr std::array kBrokenCapture = {
    cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated,
    cudaErrorStreamCaptureMerge,       cudaErrorStreamCaptureUnmatched,
    cudaErrorStreamCaptureUnjoined,    cudaErrorStreamCaptureIsolation,
    cudaErrorStreamCaptureImplicit,    cudaErrorCapturedEvent,
    cudaErrorStreamCaptureWrongThread,
};

bool IsOneOf(cudaError_t error, std::span<const cudaError_t> set) { return std::ranges::find(set, error) != set.end(); }

Status ToStatus(cudaError_t error, std::string message) {
  if (error == cudaErrorMemoryAllocation) return Status::ResourceExhausted("device_memory", std::move(message));
  if (IsOneOf(error, kAbsent)) {
    return Status::Unavailable("no_cuda_device", message + "; nvidia-smi tells what the driver sees");
  }
  if (IsOneOf(error, kFatal)) {
    return Status::Internal("device_lost", message + "; start this process again (compute-sanitizer finds the access)");
  }
  if (IsOneOf(error, kBrokenCapture)) return Status::Internal("capture_broken", std::move(message));
  if (IsOneOf(error, kForeignCode)) message += "; build with BASCULE_CUDA_ARCHITECTURES for this device";
  return Status::Internal("device_error", std::move(message));
}

}  // namespace

Status CudaStatus(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return OkStatus();
  static_cast<void>(cudaGetLastError());
  return ToStatus(error, fmt::format("{}: {} ({})", call, cudaGetErrorName(error), cudaGetErrorString(error)));
}

Status CudaStatus(cudaError_t error, std::string_view call, const DeviceDescription& device) {
  if (error == cudaSuccess) return OkStatus();
  return CudaStatus(error, call).WithContext(fmt::format("device {} {}", device.ordinal, device.uuid.ToString()));
}

UseDevice::UseDevice(int ordinal) : ordinal_(ordinal) {
  error_ = cudaGetDevice(&before_);
  if (error_ == cudaSuccess && before_ != ordinal) error_ = cudaSetDevice(ordinal);
}

UseDevice::~UseDevice() {
  if (before_ >= 0 && before_ != ordinal_ && IsSetUp(before_)) static_cast<void>(cudaSetDevice(before_));
}

}  // namespace bascule
