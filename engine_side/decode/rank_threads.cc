#include "engine_side/decode/rank_threads.h"

#include <string>
#include <thread>

#include "base/status.h"
#include "engine_side/decode/await_change.h"

namespace bascule {

RankThreads::RankThreads(int ranks)
    : ranks_(ranks), spins_(static_cast<unsigned>(ranks) > std::thread::hardware_concurrency() ? 0 : kAwakeSpins) {
  CHECK(ranks >= 1);
  for (int rank = 1; rank < ranks; ++rank) {
    threads_.emplace_back("rank-" + std::to_string(rank), [this, rank](std::stop_token) { Serve(rank); });
  }
}

RankThreads::~RankThreads() {
  stopping_.store(true, std::memory_order_release);
  jobs_.fetch_add(1);
  jobs_.notify_all();
  for (Worker& thread : threads_) thread.Join();
}

void RankThreads::RunOnAll(Job job) {
  job_ = job;
  jobs_.fetch_add(1);
  jobs_.notify_all();
  job.run(job.context, 0);
  Meet();
}

void RankThreads::Serve(int rank) {
  std::uint32_t seen = 0;
  while (true) {
    seen = AwaitChange(jobs_, seen, spins_);
    if (stopping_.load(std::memory_order_acquire)) return;
    job_.run(job_.context, rank);
    Meet();
  }
}

void RankThreads::Meet() {
  if (ranks_ == 1) return;
  const std::uint32_t meeting = meetings_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < ranks_) {
    AwaitChange(meetings_, meeting, spins_);
    return;
  }
  arrived_.store(0, std::memory_order_relaxed);
  meetings_.store(meeting + 1);
  meetings_.notify_all();
}

}  // namespace bascule
