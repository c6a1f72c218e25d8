#include "engine_side/decode/step_workers.h"

#include <algorithm>
#include <string>

#include "base/thread_priority.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bascule {
namespace {

constexpr std::int64_t kMaxRanges = 0x7fff;  // half of what its bits hold: late claims count on beyond the last range
constexpr int kSpins = 400;                  // some 20 microseconds

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Waits until `word` differs from `seen`: awake at first, then asleep.
std::uint32_t AwaitChange(const std::atomic<std::uint32_t>& word, std::uint32_t seen) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (const std::uint32_t now = word.load(std::memory_order_acquire); now != seen) return now;
    Pause();
  }
  word.wait(seen, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

}  // namespace

StepWorkers::StepWorkers(int threads, const std::vector<int>& cores) {
  for (int thread = 1; thread < threads; ++thread) {
    helpers_.emplace_back("decode-" + std::to_string(thread), [this, thread, cores](std::stop_token) {
      PinToCores(cores);
      Help(thread);
    });
  }
}

StepWorkers::~StepWorkers() {
  stopping_.store(true, std::memory_order_release);
  job_number_.fetch_add(1);
  job_number_.notify_all();
  for (Worker& helper : helpers_) helper.Join();
}

// Words that somebody sleeps on change in the single total order: a notifier looks for sleepers after its change, a
// sleeper for the change after it counts as one.
void StepWorkers::Share(Job job) {
  job.grain = std::max(job.grain, (job.items + kMaxRanges - 1) / kMaxRanges);
  const std::int64_t ranges = (job.items + job.grain - 1) / job.grain;
  job_ = job;
  ranges_done_.store(0, std::memory_order_relaxed);
  const std::uint32_t number = job_number_.load(std::memory_order_relaxed) + 1;
  claims_.store(std::uint64_t{number} << 32 | static_cast<std::uint64_t>(ranges) << 16, std::memory_order_release);
  job_number_.store(number);
  job_number_.notify_all();
  ClaimRanges(0);
  std::uint32_t done = ranges_done_.load(std::memory_order_acquire);
  while (done != ranges) done = AwaitChange(ranges_done_, done);
}

void StepWorkers::ClaimRanges(int thread) {
  while (true) {
    const std::uint64_t claim = claims_.fetch_add(1, std::memory_order_acq_rel);
    const auto range = static_cast<std::int64_t>(claim & 0xffff);
    const auto ranges = static_cast<std::int64_t>(claim >> 16 & 0xffff);
    if (range >= ranges) return;
    const std::int64_t begin = range * job_.grain;
    job_.run(job_.context, begin, std::min(begin + job_.grain, job_.items), thread);
    ranges_done_.fetch_add(1);
    ranges_done_.notify_one();
  }
}

void StepWorkers::Help(int thread) {
  std::uint32_t seen = 0;
  while (true) {
    seen = AwaitChange(job_number_, seen);
    if (stopping_.load(std::memory_order_acquire)) return;
    ClaimRanges(thread);
  }
}

}  // namespace bascule
