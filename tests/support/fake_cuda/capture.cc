#include "tests/support/fake_cuda/capture.h"

#include "tests/support/fake_cuda/streams.h"

namespace bascule::fake_cuda {
namespace {

// What one launch has done so far.
struct Progress {
  explicit Progress(std::size_t marks) : reached(marks) {}
  std::atomic<bool> begun = false;
  std::vector<std::atomic<bool>> reached;
  std::atomic<std::size_t> lanes_done = 0;
};

// The graph lives as long as its work, which refers to it.
Work WorkOf(const std::shared_ptr<Graph>& graph, const Noted& noted, const std::shared_ptr<Progress>& progress) {
  switch (noted.kind) {
    case Noted::Kind::kRun:
      return {.ready = noted.work.ready, .run = [graph, &noted] { noted.work.run(); }, .done = noted.work.done};
    case Noted::Kind::kLost:
      return {.ready = [] { return false; }, .run = [] {}};
    case Noted::Kind::kRecord:
      return {.ready = nullptr, .run = [progress, mark = noted.mark] { progress->reached[mark] = true; }};
    default:
      return {.ready = [progress, mark = noted.mark] { return progress->reached[mark].load(); }, .run = [] {}};
  }
}

}  // namespace

Captures& Captures::Get() {
  static auto* const captures = new Captures;
  return *captures;
}

std::shared_ptr<Captures::Capture> Captures::Of(cudaStream_t stream) {
  const auto found = capturing_.find(stream);
  return found == capturing_.end() ? nullptr : found->second;
}

cudaError_t Captures::Begin(cudaStream_t stream) {
  const MutexLock lock(mu_);
  if (Of(stream) != nullptr) return cudaErrorIllegalState;
  std::erase_if(marks_, [](const auto& mark) { return mark.first.expired(); });
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->thread = std::this_thread::get_id();
  capture->lanes[stream] = {};
  capturing_[stream] = std::move(capture);
  return cudaSuccess;
}

// Follows the waits back from the end of the origin: all work is on the way.
bool Captures::EverythingIsWaitedFor(const Capture& capture) {
  std::map<std::size_t, std::pair<cudaStream_t, std::size_t>> records;
  for (const auto& [stream, lane] : capture.lanes) {
    for (std::size_t i = 0; i < lane.size(); ++i) {
      if (lane[i].kind == Noted::Kind::kRecord) records[lane[i].mark] = {stream, i + 1};
    }
  }
  std::map<cudaStream_t, std::size_t> known = {{capture.origin, capture.lanes.at(capture.origin).size()}};
  for (bool grew = true; grew;) {
    grew = false;
    for (const auto& [stream, count] : std::map(known)) {
      for (std::size_t i = 0; i < count; ++i) {
        const Noted& noted = capture.lanes.at(stream)[i];
        if (noted.kind != Noted::Kind::kWait) continue;
        const auto& [from, until] = records.at(noted.mark);
        grew = grew || known[from] < until;
        known[from] = std::max(known[from], until);
      }
    }
  }
  for (const auto& [stream, lane] : capture.lanes) {
    for (std::size_t i = known[stream]; i < lane.size(); ++i) {
      if (lane[i].kind != Noted::Kind::kRecord) return false;
    }
  }
  return true;
}

cudaError_t Captures::End(cudaStream_t stream, cudaGraph_t* graph) {
  const MutexLock lock(mu_);
  const std::shared_ptr<Capture> capture = Of(stream);
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->origin != stream) return cudaErrorStreamCaptureUnmatched;
  if (capture->thread != std::this_thread::get_id()) return cudaErrorStreamCaptureWrongThread;
  std::erase_if(capturing_, [&](const auto& one) { return one.second == capture; });
  if (capture->broken != cudaSuccess) return cudaErrorStreamCaptureInvalidated;
  if (!EverythingIsWaitedFor(*capture)) return cudaErrorStreamCaptureUnjoined;
  auto made = std::make_shared<Graph>();
  made->marks = capture->marks;
  for (auto& [lane_stream, lane] : capture->lanes) made->lanes.push_back(std::move(lane));
  *graph = reinterpret_cast<cudaGraph_t>(next_ += 0x10);
  graphs_[*graph] = std::move(made);
  return cudaSuccess;
}

cudaError_t Captures::Instantiate(cudaGraph_t from, cudaGraphExec_t* graph) {
  const MutexLock lock(mu_);
  const auto found = graphs_.find(from);
  if (found == graphs_.end()) return cudaErrorInvalidValue;
  *graph = reinterpret_cast<cudaGraphExec_t>(next_ += 0x10);
  launchable_[*graph] = std::make_shared<Graph>(*found->second);
  return cudaSuccess;
}

cudaError_t Captures::Destroy(cudaGraph_t graph) {
  const MutexLock lock(mu_);
  return graphs_.erase(graph) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t Captures::Destroy(cudaGraphExec_t graph) {
  const MutexLock lock(mu_);
  return launchable_.erase(graph) == 1 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t Captures::Launch(cudaGraphExec_t name, cudaStream_t stream) {
  const MutexLock lock(mu_);
  const auto found = launchable_.find(name);
  if (found == launchable_.end()) return cudaErrorInvalidValue;
  if (Of(stream) != nullptr) return cudaErrorStreamCaptureUnsupported;
  const std::shared_ptr<Graph> graph = found->second;
  const auto progress = std::make_shared<Progress>(graph->marks);
  const auto done = std::make_shared<std::atomic<bool>>(false);
  const auto before = std::exchange(graph->done, done);
  Streams& streams = Streams::Get();
  if (!streams.Enqueue(stream, {.ready = [before] { return before == nullptr || before->load(); },
                                .run = [progress] { progress->begun = true; }})) {
    return cudaErrorInvalidResourceHandle;
  }
  for (const std::vector<Noted>& lane : graph->lanes) {
    const cudaStream_t own = streams.Make(streams.DeviceOf(stream));
    streams.Enqueue(own, {.ready = [progress] { return progress->begun.load(); }, .run = [] {}});
    for (const Noted& noted : lane) streams.Enqueue(own, WorkOf(graph, noted, progress));
    streams.Enqueue(own, {.ready = nullptr, .run = [progress] { ++progress->lanes_done; }});
    streams.Destroy(own);
  }
  streams.Enqueue(stream, {.ready = [progress, lanes = graph->lanes.size()] { return progress->lanes_done == lanes; },
                           .run = [done] { *done = true; }});
  return cudaSuccess;
}

int Captures::Count() {
  const MutexLock lock(mu_);
  return static_cast<int>(launchable_.size());
}

bool Captures::Note(cudaStream_t stream, bool lost, const Work& work) {
  const MutexLock lock(mu_);
  const std::shared_ptr<Capture> capture = Of(stream);
  if (capture == nullptr) return false;
  capture->lanes[stream].push_back({.kind = lost ? Noted::Kind::kLost : Noted::Kind::kRun, .work = work});
  return true;
}

bool Captures::NoteRecord(cudaStream_t stream, const std::shared_ptr<Event>& event) {
  const MutexLock lock(mu_);
  const std::shared_ptr<Capture> capture = Of(stream);
  marks_.erase(event);
  if (capture == nullptr) return false;
  marks_[event] = {capture, capture->marks};
  capture->lanes[stream].push_back({.kind = Noted::Kind::kRecord, .mark = capture->marks++});
  return true;
}

bool Captures::NoteWait(cudaStream_t stream, const std::shared_ptr<Event>& event, cudaError_t* answer) {
  const MutexLock lock(mu_);
  const std::shared_ptr<Capture> own = Of(stream);
  const auto mark = marks_.find(event);
  if (mark == marks_.end()) {
    if (own == nullptr) return false;
    own->broken = *answer = cudaErrorStreamCaptureIsolation;
    return true;
  }
  const std::shared_ptr<Capture> capture = mark->second.capture.lock();
  if (capture == nullptr || (own != nullptr && own != capture)) {
    *answer = own == nullptr ? cudaErrorCapturedEvent : cudaErrorStreamCaptureMerge;
    if (own != nullptr) own->broken = *answer;
    return true;
  }
  capturing_[stream] = capture;
  capture->lanes[stream].push_back({.kind = Noted::Kind::kWait, .mark = mark->second.number});
  *answer = cudaSuccess;
  return true;
}

bool Captures::IsCapturing(cudaStream_t stream) {
  const MutexLock lock(mu_);
  return Of(stream) != nullptr;
}

cudaError_t Captures::RefuseWhileCapturing() {
  const MutexLock lock(mu_);
  for (const auto& [stream, capture] : capturing_) {
    if (capture->thread != std::this_thread::get_id()) continue;
    return capture->broken = cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

}  // namespace bascule::fake_cuda
