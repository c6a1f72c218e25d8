// What CUDA answers, as a Status: see device/device.h for the reasons.
//
// Thread-safety: thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/status.h"
#include "device/device.h"

namespace bascule {

// OK for cudaSuccess. `call` is CUDA's name for what was asked. The error does not stay behind as this thread's last
// one.
Status CudaStatus(cudaError_t error, std::string_view call);
// The same, and on which device.
Status CudaStatus(cudaError_t error, std::string_view call, const DeviceDescription& device);

// This thread uses a device for as long as this lives, and then the one that it used before: the thread may be an
// embedder's, whose own calls rely on it. It does not go back to a device that nobody in this process has used, such as
// the first one, which every thread begins with: that alone would take half a gigabyte of its memory.
//
// Every call of CUDA that is given a stream, an event or memory stands under one: a thread that has none would set up
// the device it begins with.
class UseDevice {
 public:
  explicit UseDevice(int ordinal);
  ~UseDevice();
  UseDevice(const UseDevice&) = delete;
  UseDevice& operator=(const UseDevice&) = delete;
  cudaError_t error() const { return error_; }

 private:
  int before_ = -1;
  int ordinal_;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace bascule

// Returns from the function with CUDA's error, when `call` has one.
#define RETURN_IF_CUDA_ERROR(function, device, ...) \
  RETURN_IF_ERROR(::bascule::CudaStatus(function(__VA_ARGS__), #function, device))

// The rest of the scope uses a device of this process; returns from the function where that fails.
#define USE_DEVICE(description)                                  \
  const ::bascule::UseDevice used_device((description).ordinal); \
  RETURN_IF_ERROR(::bascule::CudaStatus(used_device.error(), "cudaSetDevice", description))
