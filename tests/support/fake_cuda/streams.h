// All streams of the process, and the one worker that runs them. Of the streams whose next work may run, the worker
// takes one drawn from the seed, and now and then lets a stream stand for a while: so work of different streams, and of
// the host, comes in any order that events allow, and one that is missing shows as a wrong result.
//
// Thread-safety: thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <map>
#include <random>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/worker.h"
#include "tests/support/fake_cuda/work.h"

namespace bascule::fake_cuda {

class Streams {
 public:
  static Streams& Get();

  void SetSeed(std::uint64_t seed) EXCLUDES(mu_);
  // A number from the same source.
  std::uint64_t Draw(std::uint64_t below) EXCLUDES(mu_);

  cudaStream_t Make(int device) EXCLUDES(mu_);
  // Which of all devices it is on; -1: there is no such stream.
  int DeviceOf(cudaStream_t stream) EXCLUDES(mu_);
  // What it has to do is still done.
  bool Destroy(cudaStream_t stream) EXCLUDES(mu_);
  // False when there is no such stream; null, the default stream, is none.
  bool Enqueue(cudaStream_t stream, Work work) EXCLUDES(mu_);
  int Count() EXCLUDES(mu_);

 private:
  struct Stream {
    int device = 0;
    std::deque<Work> work;
    TimePoint stands_until{};
    bool runs = false;  // its first work, which is no longer in the queue
    bool destroyed = false;
  };
  Streams();
  void Run(const std::stop_token& stop) EXCLUDES(mu_);
  // Takes the next piece of work of one of the streams that may run. Null: none may.
  Stream* TakeNext(Work& work) REQUIRES(mu_);
  // `work` has run; what is not done comes first again.
  void PutBack(Stream& stream, Work work) EXCLUDES(mu_);
  void MayStand(Stream& stream) REQUIRES(mu_);
  void ForgetDestroyed() REQUIRES(mu_);

  const bool stands_;
  Mutex mu_;
  CondVar changed_;
  std::mt19937_64 random_ GUARDED_BY(mu_);
  std::map<std::uintptr_t, Stream> streams_ GUARDED_BY(mu_);
  std::uintptr_t next_ GUARDED_BY(mu_) = 0x1000;
  Worker worker_ GUARDED_BY(mu_);  // begins with the first stream: a fork before that is as good as any
};

}  // namespace bascule::fake_cuda
