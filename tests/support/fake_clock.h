// A clock that stands until a test moves it. Threads that wait on it wake when Advance passes their point.
//
// Thread-safety: thread-safe.
#pragma once

#include "base/clock.h"

namespace bascule {

class FakeClock final : public Clock {
 public:
  TimePoint Now() override EXCLUDES(mu_);
  std::chrono::system_clock::time_point WallNow() override;
  bool WaitUntil(CondVar& cond, Mutex& mu, TimePoint until) override REQUIRES(mu);
  // Moves the time. Waiters notice within a millisecond of real time.
  void Advance(Duration time) EXCLUDES(mu_);

 private:
  Mutex mu_;  // Taken after a waiter's own mutex, never before.
  TimePoint now_ GUARDED_BY(mu_) = TimePoint(std::chrono::hours(1));
};

}  // namespace bascule
