#include "tests/support/fake_cuda/streams.h"

#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/memory.h"

namespace bascule::fake_cuda {
namespace {

constexpr Duration kShortStand = std::chrono::microseconds(150);
constexpr Duration kLongStand = std::chrono::milliseconds(2);
// How long an event of another process, which wakes nobody here, may go unnoticed.
constexpr Duration kLookAgain = std::chrono::microseconds(50);

std::uint64_t SeedOfEnvironment() {
  const char* const seed = std::getenv("BASCULE_FAKE_CUDA_SEED");
  return seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10);
}

bool StandsOfEnvironment() {
  const char* const stands = std::getenv("BASCULE_FAKE_CUDA_STANDS");
  return stands == nullptr || std::strcmp(stands, "0") != 0;
}

}  // namespace

Streams& Streams::Get() {
  static auto* const streams = new Streams;
  return *streams;
}

Streams::Streams() : stands_(StandsOfEnvironment()), random_(SeedOfEnvironment()) {
  // The worker ends before what its work refers to: objects of the program go after this.
  std::atexit([] {
    Streams& streams = Get();
    Worker ending;
    {
      const MutexLock lock(streams.mu_);
      std::swap(ending, streams.worker_);
      ending.RequestStop();
      streams.changed_.NotifyAll();
    }
    ending.Join();
  });
}

void Streams::SetSeed(std::uint64_t seed) {
  const MutexLock lock(mu_);
  random_.seed(seed);
}

std::uint64_t Streams::Draw(std::uint64_t below) {
  const MutexLock lock(mu_);
  return random_() % below;
}

cudaStream_t Streams::Make(int device) {
  const MutexLock lock(mu_);
  if (!worker_.joinable()) worker_ = Worker("fake_cuda", [this](const std::stop_token& stop) { Run(stop); });
  next_ += 0x100;
  streams_[next_].device = device;
  return reinterpret_cast<cudaStream_t>(next_);
}

int Streams::DeviceOf(cudaStream_t stream) {
  const MutexLock lock(mu_);
  const auto found = streams_.find(reinterpret_cast<std::uintptr_t>(stream));
  return found == streams_.end() ? -1 : found->second.device;
}

bool Streams::Destroy(cudaStream_t stream) {
  const MutexLock lock(mu_);
  const auto found = streams_.find(reinterpret_cast<std::uintptr_t>(stream));
  if (found == streams_.end() || found->second.destroyed) return false;
  found->second.destroyed = true;
  ForgetDestroyed();
  return true;
}

bool Streams::Enqueue(cudaStream_t stream, Work work) {
  const MutexLock lock(mu_);
  const auto found = streams_.find(reinterpret_cast<std::uintptr_t>(stream));
  if (found == streams_.end() || found->second.destroyed) return false;
  if (found->second.work.empty() && !found->second.runs) MayStand(found->second);
  found->second.work.push_back(std::move(work));
  changed_.NotifyAll();
  return true;
}

int Streams::Count() {
  const MutexLock lock(mu_);
  int alive = 0;
  for (const auto& [name, stream] : streams_) alive += stream.destroyed ? 0 : 1;
  return alive;
}

void Streams::MayStand(Stream& stream) {
  if (!stands_) return;
  const std::uint64_t draw = random_() % 100;
  const Duration stand = draw < 60 ? Duration::zero() : draw < 92 ? kShortStand : kLongStand;
  stream.stands_until = Clock::Real().Now() + stand;
}

void Streams::ForgetDestroyed() {
  std::erase_if(streams_, [](const auto& entry) {
    return entry.second.destroyed && entry.second.work.empty() && !entry.second.runs;
  });
}

Streams::Stream* Streams::TakeNext(Work& work) {
  std::vector<Stream*> may_run;
  for (auto& [name, stream] : streams_) {
    if (!stream.work.empty() && stream.stands_until <= Clock::Real().Now() &&
        (stream.work.front().ready == nullptr || stream.work.front().ready())) {
      may_run.push_back(&stream);
    }
  }
  if (may_run.empty()) return nullptr;
  Stream* const chosen = may_run[random_() % may_run.size()];
  work = std::move(chosen->work.front());
  chosen->work.pop_front();
  chosen->runs = true;
  return chosen;
}

void Streams::PutBack(Stream& stream, Work work) {
  const MutexLock lock(mu_);
  stream.runs = false;
  if (work.done != nullptr && !work.done()) stream.work.push_front(std::move(work));
  MayStand(stream);
  ForgetDestroyed();
}

void Streams::Run(const std::stop_token& stop) {
  std::optional<Memory::DeviceAccess> access;  // as long as work follows work
  while (true) {
    Work work;
    Stream* stream = nullptr;
    {
      const MutexLock lock(mu_);
      while (!stop.stop_requested() && (stream = TakeNext(work)) == nullptr) {
        access.reset();
        bool any = false;
        for (const auto& [name, one] : streams_) any = any || !one.work.empty();
        const TimePoint now = Clock::Real().Now();
        static_cast<void>(Clock::Real().WaitUntil(changed_, mu_, now + (any ? kLookAgain : std::chrono::seconds(1))));
      }
      if (stop.stop_requested()) return;
    }
    if (!access) access.emplace();
    work.run();
    PutBack(*stream, std::move(work));
  }
}

}  // namespace bascule::fake_cuda
