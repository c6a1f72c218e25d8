// What the other calls need of streams.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace bascule::fake_cuda {

// cudaErrorInvalidResourceHandle where there is no such stream.
cudaError_t EnqueueWork(cudaStream_t stream, bool lost, std::function<void()> run);
int CountEvents();

}  // namespace bascule::fake_cuda
