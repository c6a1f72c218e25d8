// Streams, events, and what is enqueued.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "tests/support/fake_cuda/capture.h"
#include "tests/support/fake_cuda/devices.h"
#include "tests/support/fake_cuda/ipc.h"
#include "tests/support/fake_cuda/runtime_internal.h"
#include "tests/support/fake_cuda/stream_calls_internal.h"
#include "tests/support/fake_cuda/streams.h"

using namespace bascule::fake_cuda;
using bascule::MutexLock;

namespace {

bascule::Mutex events_mu;
std::map<cudaEvent_t, std::shared_ptr<Event>> events GUARDED_BY(events_mu);

std::shared_ptr<Event> Find(cudaEvent_t event) {
  const MutexLock lock(events_mu);
  const auto found = events.find(event);
  return found == events.end() ? nullptr : found->second;
}

cudaError_t Keep(std::shared_ptr<Event> event, cudaEvent_t* name) {
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  const MutexLock lock(events_mu);
  *name = reinterpret_cast<cudaEvent_t>(event.get());
  events.emplace(*name, std::move(event));
  return cudaSuccess;
}

constexpr std::size_t kWholeBelow = 4096;

// A large copy comes in pieces, in any order: whoever reads too early finds some old and some new.
template <typename CopyPiece>
cudaError_t EnqueueInPieces(cudaStream_t stream, std::size_t bytes, bool lost, CopyPiece copy_piece) {
  const std::size_t count = bytes < kWholeBelow ? 1 : 1 + Streams::Get().Draw(3);
  std::vector<std::size_t> pieces(count);
  for (std::size_t i = 0; i < count; ++i) pieces[i] = i;
  for (std::size_t i = count; i > 1; --i) std::swap(pieces[i - 1], pieces[Streams::Get().Draw(i)]);
  for (const std::size_t piece : pieces) {
    const std::size_t begin = bytes / count * piece;
    const std::size_t end = piece + 1 == count ? bytes : bytes / count * (piece + 1);
    const cudaError_t error = EnqueueWork(stream, lost, [=] { copy_piece(begin, end - begin); });
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

namespace bascule::fake_cuda {

cudaError_t EnqueueWork(cudaStream_t stream, bool lost, std::function<void()> run) {
  return EnqueueWork(stream, lost, Work{.ready = nullptr, .run = std::move(run)});
}

cudaError_t EnqueueWork(cudaStream_t stream, bool lost, Work work) {
  if (Captures::Get().Note(stream, lost, work)) return cudaSuccess;
  if (lost) work.ready = [] { return false; };
  return Streams::Get().Enqueue(stream, std::move(work)) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

int CountEvents() {
  const MutexLock lock(events_mu);
  return static_cast<int>(events.size());
}

}  // namespace bascule::fake_cuda

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  FAKE_CUDA_CALL();
  // A stream that waits for the default stream is a mistake here.
  if (flags != cudaStreamNonBlocking) return Remember(cudaErrorInvalidValue);
  *stream = Streams::Get().Make(CurrentDevice());
  return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* ordinal) {
  FAKE_CUDA_CALL();
  const int device = Streams::Get().DeviceOf(stream);
  if (device < 0) return Remember(cudaErrorInvalidResourceHandle);
  *ordinal = OrdinalOf(device);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  FAKE_CUDA_CALL();
  if (Captures::Get().IsCapturing(stream)) return Remember(cudaErrorStreamCaptureUnsupported);
  return Remember(Streams::Get().Destroy(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t name, unsigned) {
  FAKE_CUDA_CALL();
  const std::shared_ptr<Event> event = Find(name);
  if (event == nullptr) return Remember(cudaErrorInvalidResourceHandle);
  if (lost) return cudaSuccess;  // nothing is waited for
  cudaError_t answer = cudaSuccess;
  if (Captures::Get().NoteWait(stream, event, &answer)) return Remember(answer);
  Work wait{.ready = [event, mark = event->latest()] { return event->Reached(mark); }, .run = [] {}};
  return Remember(Streams::Get().Enqueue(stream, std::move(wait)) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  FAKE_CUDA_CALL();
  return Remember(EnqueueInPieces(stream, bytes, lost, [=](std::size_t begin, std::size_t count) {
    std::memmove(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin, count);
  }));
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  FAKE_CUDA_CALL();
  return Remember(EnqueueInPieces(stream, bytes, lost, [=](std::size_t begin, std::size_t count) {
    std::memset(static_cast<std::byte*>(to) + begin, value, count);
  }));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* name, unsigned flags) {
  FAKE_CUDA_CALL();
  return Remember(Keep(Event::Make(CurrentDevice(), (flags & cudaEventInterprocess) != 0), name));
}

cudaError_t cudaEventDestroy(cudaEvent_t name) {
  FAKE_CUDA_CALL();
  const MutexLock lock(events_mu);
  return Remember(events.erase(name) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t name, cudaStream_t stream) {
  FAKE_CUDA_CALL();
  const std::shared_ptr<Event> event = Find(name);
  if (event == nullptr) return Remember(cudaErrorInvalidResourceHandle);
  if (Captures::Get().NoteRecord(stream, event)) return cudaSuccess;
  return Remember(EnqueueWork(stream, lost, [event, mark = event->Record()] { event->Reach(mark); }));
}

cudaError_t cudaEventQuery(cudaEvent_t name) {
  FAKE_CUDA_CALL();
  FAKE_CUDA_NOT_WHILE_CAPTURING();
  const std::shared_ptr<Event> event = Find(name);
  if (event == nullptr) return Remember(cudaErrorInvalidResourceHandle);
  return event->Reached(event->latest()) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t name) {
  FAKE_CUDA_CALL();
  const std::shared_ptr<Event> event = Find(name);
  if (event == nullptr || !event->is_shared()) return Remember(cudaErrorInvalidResourceHandle);
  event->Export(handle);
  return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* name, cudaIpcEventHandle_t handle) {
  FAKE_CUDA_CALL();
  if (ReadName(handle).process == getpid()) return Remember(cudaErrorDeviceUninitialized);
  return Remember(Keep(Event::Open(handle, CurrentDevice()), name));
}

}  // extern "C"
