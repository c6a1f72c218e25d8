// What the other calls need of streams.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "tests/support/fake_cuda/work.h"

namespace bascule::fake_cuda {

// cudaErrorInvalidResourceHandle where there is no such stream.
cudaError_t EnqueueWork(cudaStream_t stream, bool lost, std::function<void()> run);
cudaError_t EnqueueWork(cudaStream_t stream, bool lost, Work work);
int CountEvents();

}  // namespace bascule::fake_cuda
