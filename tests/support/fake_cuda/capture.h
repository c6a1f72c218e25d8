// Streams that note down what they are given, and the graphs that come of it. A stream that waits for an event of a
// capture joins it. What a real capture refuses breaks this one too: memory and questions asked of events on the thread
// that captures, a wait for an event from outside, a stream that is not waited for in the end.
//
// A launch runs the noted work on streams of its own, in any order that the noted events allow.
//
// Thread-safety: thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "tests/support/fake_cuda/event.h"
#include "tests/support/fake_cuda/work.h"

namespace bascule::fake_cuda {

// One piece of noted work; marks are numbered within their capture.
struct Noted {
  enum class Kind { kRun, kLost, kRecord, kWait };
  Kind kind = Kind::kRun;
  Work work = {};
  std::size_t mark = 0;
};

// What each stream of a capture has to do.
struct Graph {
  std::vector<std::vector<Noted>> lanes;
  std::size_t marks = 0;
  std::shared_ptr<std::atomic<bool>> done;  // its last launch
};

class Captures {
 public:
  static Captures& Get();

  cudaError_t Begin(cudaStream_t stream) EXCLUDES(mu_);
  cudaError_t End(cudaStream_t stream, cudaGraph_t* graph) EXCLUDES(mu_);
  cudaError_t Instantiate(cudaGraph_t from, cudaGraphExec_t* graph) EXCLUDES(mu_);
  cudaError_t Destroy(cudaGraph_t graph) EXCLUDES(mu_);
  cudaError_t Destroy(cudaGraphExec_t graph) EXCLUDES(mu_);
  cudaError_t Launch(cudaGraphExec_t graph, cudaStream_t stream) EXCLUDES(mu_);
  int Count() EXCLUDES(mu_);  // graphs that can be launched

  // Whether `stream` captures; then the work has been noted.
  bool Note(cudaStream_t stream, bool lost, const Work& work) EXCLUDES(mu_);
  // Whether the record or the wait is a capture's; then `*answer` is what its caller gets.
  bool NoteRecord(cudaStream_t stream, const std::shared_ptr<Event>& event) EXCLUDES(mu_);
  bool NoteWait(cudaStream_t stream, const std::shared_ptr<Event>& event, cudaError_t* answer) EXCLUDES(mu_);
  bool IsCapturing(cudaStream_t stream) EXCLUDES(mu_);
  // cudaErrorStreamCaptureUnsupported, and the capture is broken, where the calling thread captures.
  cudaError_t RefuseWhileCapturing() EXCLUDES(mu_);

 private:
  struct Capture {
    cudaStream_t origin = nullptr;
    std::thread::id thread;
    std::map<cudaStream_t, std::vector<Noted>> lanes;
    std::size_t marks = 0;
    cudaError_t broken = cudaSuccess;
  };
  struct Mark {
    std::weak_ptr<Capture> capture;
    std::size_t number = 0;
  };
  std::shared_ptr<Capture> Of(cudaStream_t stream) REQUIRES(mu_);
  static bool EverythingIsWaitedFor(const Capture& capture);

  Mutex mu_;
  std::map<cudaStream_t, std::shared_ptr<Capture>> capturing_ GUARDED_BY(mu_);
  std::map<std::weak_ptr<Event>, Mark, std::owner_less<>> marks_ GUARDED_BY(mu_);  // events last recorded in a capture
  std::map<cudaGraph_t, std::shared_ptr<Graph>> graphs_ GUARDED_BY(mu_);
  std::map<cudaGraphExec_t, std::shared_ptr<Graph>> launchable_ GUARDED_BY(mu_);
  std::uintptr_t next_ GUARDED_BY(mu_) = 0x10;
};

}  // namespace bascule::fake_cuda

// Begins a call that a thread may not make while it captures.
#define FAKE_CUDA_NOT_WHILE_CAPTURING()                                                       \
  do {                                                                                        \
    const cudaError_t refused = ::bascule::fake_cuda::Captures::Get().RefuseWhileCapturing(); \
    if (refused != cudaSuccess) return ::bascule::fake_cuda::Remember(refused);               \
  } while (false)
