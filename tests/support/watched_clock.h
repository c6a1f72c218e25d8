// The real clock, which also tells when a given thread has begun to wait.
//
// Thread-safety: thread-safe.
#pragma once

#include <atomic>
#include <thread>

#include "base/clock.h"

namespace bascule {

class WatchedClock final : public Clock {
 public:
  TimePoint Now() override { return Clock::Real().Now(); }
  std::chrono::system_clock::time_point WallNow() override { return Clock::Real().WallNow(); }
  bool WaitUntil(CondVar& cond, Mutex& mu, TimePoint until) override REQUIRES(mu) {
    if (std::this_thread::get_id() == watched_.load()) waiting_.store(true);
    return Clock::Real().WaitUntil(cond, mu, until);
  }
  void Watch(std::thread::id thread) { watched_.store(thread); }
  bool waiting() const { return waiting_.load(); }

 private:
  std::atomic<std::thread::id> watched_{};
  std::atomic<bool> waiting_{false};
};

}  // namespace bascule
