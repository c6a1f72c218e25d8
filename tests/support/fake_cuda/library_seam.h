// What the fake runtime gives to fakes of CUDA's libraries (libcublas, libnccl), which link it: their work runs in the
// order of its streams, and is captured with the rest.
//
// Thread-safety: thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "tests/support/fake_cuda/work.h"

extern "C" {

// Runs `run` once, on the worker of the streams, which may touch device memory; or notes it, where `stream` captures.
// cudaErrorInvalidResourceHandle where there is no such stream.
cudaError_t bascule_fake_cuda_enqueue(cudaStream_t stream, const std::function<void()>& run);
// The same of work that takes several steps.
cudaError_t bascule_fake_cuda_enqueue_work(cudaStream_t stream, const bascule::fake_cuda::Work& work);
bool bascule_fake_cuda_captures(cudaStream_t stream);
// A fault that was ordered (FakeCuda::Fail) for this call of `function`; 0: none. kLost counts as none.
int bascule_fake_cuda_take_fault(const char* function);
}
