#include "tests/support/fake_clock.h"

namespace bascule {

TimePoint FakeClock::Now() {
  MutexLock lock(mu_);
  return now_;
}

std::chrono::system_clock::time_point FakeClock::WallNow() {
  return std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(Now().time_since_epoch()));
}

bool FakeClock::WaitUntil(CondVar& cond, Mutex& mu, TimePoint until) {
  if (Now() >= until) return false;
  // A waiter looks at the fake time once a real millisecond: no list of condition variables, no lock order to keep.
  WaitReal(cond, mu, std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
  return Now() < until;
}

void FakeClock::Advance(Duration time) {
  MutexLock lock(mu_);
  now_ += time;
}

}  // namespace bascule
