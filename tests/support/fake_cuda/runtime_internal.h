// How the fake's functions begin.
#pragma once

#include "tests/support/fake_cuda/control.h"
#include "tests/support/fake_cuda/faults.h"

// A fault that was ordered for this call, or nothing. Afterwards `lost` says whether what it enqueues is to get lost.
#define FAKE_CUDA_CALL()                                                  \
  const int fault = ::bascule::fake_cuda::Faults::Get().Take(__func__);   \
  [[maybe_unused]] const bool lost = fault == ::bascule::FakeCuda::kLost; \
  if (fault != cudaSuccess && !lost) return ::bascule::fake_cuda::Remember(static_cast<cudaError_t>(fault))
