// How the fake's functions begin.
#pragma once

#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/devices.h"
#include "tests/support/fake_cuda/faults.h"

// Of a call that any thread may make: a fault that was ordered for it, or nothing. Afterwards `lost` says whether what
// it enqueues is to get lost.
#define FAKE_CUDA_CALL_OF_NO_DEVICE()                                     \
  const int fault = ::bascule::fake_cuda::Faults::Get().Take(__func__);   \
  [[maybe_unused]] const bool lost = fault == ::bascule::FakeCuda::kLost; \
  if (fault != cudaSuccess && !lost) return ::bascule::fake_cuda::Remember(static_cast<cudaError_t>(fault))

// Of any other: the calling thread's device is set up, if it has not been.
#define FAKE_CUDA_CALL()                                               \
  ::bascule::fake_cuda::SetUp(::bascule::fake_cuda::CurrentOrdinal()); \
  FAKE_CUDA_CALL_OF_NO_DEVICE()
