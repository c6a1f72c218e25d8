// Which call of the runtime is to fail, and how.
//
// Thread-safety: thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <string>

#include "base/mutex.h"

namespace bascule::fake_cuda {

class Faults {
 public:
  static Faults& Get();

  void Add(const std::string& function, int nth, int error) EXCLUDES(mu_);
  // Forgets all. How many there were.
  int TakeBack() EXCLUDES(mu_);
  // A call of `function`: cudaSuccess, the error that was ordered, or kLost.
  int Take(const std::string& function) EXCLUDES(mu_);

 private:
  Faults();
  int TakeOf(const std::string& function) REQUIRES(mu_);
  struct Fault {
    int calls_left = 0;
    int error = 0;
  };
  Mutex mu_;
  std::multimap<std::string, Fault> faults_ GUARDED_BY(mu_);
};

// The error of this thread's last failed call, see cudaGetLastError.
cudaError_t Remember(cudaError_t error);
cudaError_t TakeLastError();

}  // namespace bascule::fake_cuda
