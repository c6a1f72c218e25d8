// The tensor-parallel engine ranks of one replica as threads: all run the same step side by side and meet at fixed
// points of it. The first rank is the caller's thread.
//
// A meeting costs a fraction of a microsecond while every rank has a core of its own. A rank that comes early looks on
// for some microseconds, then sleeps; where there are more ranks than cores it sleeps at once, because the one that is
// waited for needs the core. Ranks come to the same meetings in the same order, so none waits for another forever.
//
// Thread-safety: confined to the thread that made it, but for Meet.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/worker.h"

namespace bascule {

class RankThreads {
 public:
  // `ranks` >= 1.
  explicit RankThreads(int ranks);
  ~RankThreads();

  int ranks() const { return ranks_; }

  // Calls work(rank) for every rank at once, each time on the same thread, and returns after all of them.
  template <typename Work>
  void Run(const Work& work) {
    RunOnAll({&work, [](const void* context, int rank) { (*static_cast<const Work*>(context))(rank); }});
  }

  // Called by every rank inside the work: returns once all have come. What a rank wrote before, all can read after.
  void Meet();

 private:
  struct Job {
    const void* context = nullptr;
    void (*run)(const void* context, int rank) = nullptr;
  };
  void RunOnAll(Job job);
  void Serve(int rank);

  const int ranks_;
  const int spins_;
  Job job_;                                 // written while no rank runs
  std::atomic<std::uint32_t> jobs_{0};      // the ranks sleep on it between two jobs
  std::atomic<std::uint32_t> meetings_{0};  // and on this one in a meeting
  std::atomic<int> arrived_{0};             // of the meeting under way
  std::atomic<bool> stopping_{false};
  std::vector<Worker> threads_;  // of every rank but the first
};

}  // namespace bascule
