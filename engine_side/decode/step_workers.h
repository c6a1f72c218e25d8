// Threads that share the work of one decode step. The caller works too; a range is whatever thread claims it first, so
// a helper that the system runs late costs no more than the range it holds. Kernels give the same bits whoever runs
// them.
//
// Helpers spin for some microseconds between two pieces of work of one step, then sleep: the cores are shared.
//
// Thread-safety: confined to the scheduler thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/worker.h"

namespace bascule {

class StepWorkers {
 public:
  // `threads` >= 1, the caller's included.
  // Helpers keep to `cores`, if any are given.
  explicit StepWorkers(int threads, const std::vector<int>& cores = {});
  ~StepWorkers();

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls work(begin, end, thread) for disjoint ranges that make up [0, items), and returns after all of them. `grain`
  // is the wanted size of a range; `thread` is in [0, threads()). Where the whole takes less than it costs to share it,
  // by the estimate `nanoseconds`, the caller does all of it.
  template <typename Work>
  void ForRanges(std::int64_t items, std::int64_t grain, double nanoseconds, const Work& work) {
    if (helpers_.empty() || nanoseconds < kWorthSharingNs || items <= grain) {
      if (items > 0) work(std::int64_t{0}, items, 0);
      return;
    }
    Share({items, grain, &work, [](const void* context, std::int64_t begin, std::int64_t end, int thread) {
             (*static_cast<const Work*>(context))(begin, end, thread);
           }});
  }

 private:
  struct Job {
    std::int64_t items = 0;
    std::int64_t grain = 1;
    const void* context = nullptr;
    void (*run)(const void* context, std::int64_t begin, std::int64_t end, int thread) = nullptr;
  };
  static constexpr double kWorthSharingNs = 15000;

  void Share(Job job);
  void ClaimRanges(int thread);
  void Help(int thread);

  Job job_;  // Written while no range is claimed or claimable.
  // What can be claimed: the job's number, its ranges, and the next one, in 32, 16 and 16 bits. One word, so that a
  // helper that comes late can claim a range of the job that is there now, or none.
  std::atomic<std::uint64_t> claims_{0};
  std::atomic<std::uint32_t> job_number_{0};   // helpers sleep on it
  std::atomic<std::uint32_t> ranges_done_{0};  // the caller sleeps on it
  std::atomic<bool> stopping_{false};
  std::vector<Worker> helpers_;
};

}  // namespace bascule
