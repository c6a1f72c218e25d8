// A clock whose time passes only while somebody waits, and then at once: a wait that would end at its deadline ends
// now.
//
// Thread-safety: thread-safe.
#pragma once

#include <algorithm>
#include <atomic>

#include "base/clock.h"

namespace bascule {

class WaitedClock final : public Clock {
 public:
  TimePoint Now() override { return TimePoint(Duration(now_.load())); }
  std::chrono::system_clock::time_point WallNow() override { return {}; }
  bool WaitUntil(CondVar&, Mutex&, TimePoint until) override {
    const Duration::rep target = until.time_since_epoch().count();
    for (Duration::rep now = now_; now < target && !now_.compare_exchange_weak(now, target);) continue;
    return false;
  }

 private:
  std::atomic<Duration::rep> now_ = Clock::Real().Now().time_since_epoch().count();
};

}  // namespace bascule
