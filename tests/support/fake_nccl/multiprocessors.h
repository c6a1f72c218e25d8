// The multiprocessors of each device, which NCCL's kernels take one for each CTA from their launch to their end. They
// are launched in order: one that does not fit waits for those before it to end, and what was launched behind it waits
// too.
//
// Thread-safety: thread-safe.
#pragma once

#include <deque>
#include <map>

#include "base/mutex.h"

namespace bascule::fake_nccl {

class Multiprocessors {
 public:
  static Multiprocessors& Get();

  // Launches the kernel named, unless it has been: on `device` of all, which has so many. Whether it runs.
  bool Launch(const void* kernel, int device, int multiprocessors, int ctas) EXCLUDES(mu_);
  // It has ended, or never will run.
  void End(const void* kernel, int device) EXCLUDES(mu_);

  int CountTaken() EXCLUDES(mu_);    // of all devices
  int CountWaiting() EXCLUDES(mu_);  // kernels that were launched and do not fit

 private:
  struct Waiting {
    const void* kernel = nullptr;
    int ctas = 0;
  };
  struct Device {
    int taken = 0;
    std::map<const void*, int> running;  // their CTAs
    std::deque<Waiting> waiting;
  };
  Mutex mu_;
  std::map<int, Device> devices_ GUARDED_BY(mu_);
};

}  // namespace bascule::fake_nccl
