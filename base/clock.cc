#include "base/clock.h"

#include <ctime>

namespace bascule {
namespace {

class RealClock final : public Clock {
 public:
  TimePoint Now() override { return std::chrono::steady_clock::now(); }
  std::chrono::system_clock::time_point WallNow() override { return std::chrono::system_clock::now(); }
  bool WaitUntil(CondVar& cond, Mutex& mu, TimePoint until) override REQUIRES(mu) {
    WaitReal(cond, mu, until);
    return Now() < until;
  }
};

}  // namespace

Clock& Clock::Real() {
  // Never destroyed: threads may still look at it while the program ends.
  static auto* const clock = new RealClock;
  return *clock;
}

bool Clock::SleepUntil(TimePoint until, std::stop_token stop) {
  Mutex mu;
  CondVar cond;
  // The callback takes the lock, so that a stop between the test and the wait is not lost.
  std::stop_callback wake(stop, [&] {
    MutexLock lock(mu);
    cond.NotifyAll();
  });
  MutexLock lock(mu);
  while (!stop.stop_requested()) {
    if (!WaitUntil(cond, mu, until)) return true;
  }
  return false;
}

std::string Rfc3339(std::chrono::system_clock::time_point when) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(when);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return std::string(text, length);
}

}  // namespace bascule
