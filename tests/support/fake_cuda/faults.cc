#include "tests/support/fake_cuda/faults.h"

#include <cstdlib>
#include <sstream>

#include "base/status.h"
#include "tests/support/fake_cuda/control.h"

namespace bascule::fake_cuda {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

Faults& Faults::Get() {
  static auto* const faults = new Faults;
  return *faults;
}

Faults::Faults() {
  const char* const ordered = std::getenv("BASCULE_FAKE_CUDA_FAULTS");
  std::istringstream words(ordered == nullptr ? "" : ordered);
  for (std::string word; words >> word;) {
    const std::size_t colon = word.find(':');
    const std::size_t equals = word.find('=', colon);
    CHECK(colon != std::string::npos && equals != std::string::npos);
    const std::string error = word.substr(equals + 1);
    Add(word.substr(0, colon), std::atoi(word.c_str() + colon + 1),
        error == "lost" ? FakeCuda::kLost : std::atoi(error.c_str()));
  }
}

void Faults::Add(const std::string& function, int nth, int error) {
  const MutexLock lock(mu_);
  faults_.emplace(function, Fault{nth, error});
}

int Faults::TakeBack() {
  const MutexLock lock(mu_);
  const auto count = static_cast<int>(faults_.size());
  faults_.clear();
  return count;
}

int Faults::Take(const std::string& function) {
  const MutexLock lock(mu_);
  const int of_all = TakeOf("*");
  const int own = TakeOf(function);
  return own != cudaSuccess ? own : of_all;
}

int Faults::TakeOf(const std::string& function) {
  int error = cudaSuccess;
  auto [at, end] = faults_.equal_range(function);
  while (at != end) {
    const bool due = --at->second.calls_left == 0;
    if (due) error = at->second.error;
    at = due ? faults_.erase(at) : std::next(at);
  }
  return error;
}

cudaError_t Remember(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

cudaError_t TakeLastError() { return std::exchange(last_error, cudaSuccess); }

}  // namespace bascule::fake_cuda
