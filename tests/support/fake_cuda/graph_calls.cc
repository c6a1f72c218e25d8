// Captures and graphs.
#include <cuda_runtime_api.h>

#include "tests/support/fake_cuda/capture.h"
#include "tests/support/fake_cuda/runtime_internal.h"

using namespace bascule::fake_cuda;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  FAKE_CUDA_CALL();
  // A mode that would refuse what other threads do is a mistake here.
  if (mode != cudaStreamCaptureModeThreadLocal) return Remember(cudaErrorInvalidValue);
  return Remember(Captures::Get().Begin(stream));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const cudaError_t ended = Captures::Get().End(stream, graph);  // in any case
  FAKE_CUDA_CALL();
  return Remember(ended);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* graph, cudaGraph_t from, unsigned long long) {
  FAKE_CUDA_CALL();
  return Remember(Captures::Get().Instantiate(from, graph));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  FAKE_CUDA_CALL();
  return Remember(Captures::Get().Destroy(graph));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  FAKE_CUDA_CALL();
  return Remember(Captures::Get().Destroy(graph));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  FAKE_CUDA_CALL();
  return Remember(Captures::Get().Launch(graph, stream));
}

}  // extern "C"
