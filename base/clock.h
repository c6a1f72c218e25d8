// Time behind an interface, so that tests hold it and a whole fleet can run in one deterministic process. Nothing
// outside Clock sleeps or reads the time.
//
// Thread-safety: thread-safe.
#pragma once

#include <chrono>
#include <stop_token>
#include <string>

#include "base/mutex.h"

namespace bascule {

using Duration = std::chrono::steady_clock::duration;
using TimePoint = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() = 0;
  virtual std::chrono::system_clock::time_point WallNow() = 0;
  // Waits with `mu` held until `cond` is notified, spuriously wakes, or `until` is reached. Wait in a loop:
  //   while (!done) if (!clock.WaitUntil(cond, mu, deadline)) return Status::DeadlineExceeded(...);
  // Returns false once Now() >= until.
  virtual bool WaitUntil(CondVar& cond, Mutex& mu, TimePoint until) REQUIRES(mu) = 0;
  // Returns early, with false, when `stop` is requested.
  bool SleepUntil(TimePoint until, std::stop_token stop);

  static Clock& Real();

 protected:
  static void WaitReal(CondVar& cond, Mutex& mu, TimePoint until) REQUIRES(mu) { cond.WaitUntil(mu, until); }
};

// A point in time by which something is done (I8: every wait has one). It travels between processes as the time left.
class Deadline {
 public:
  static Deadline After(Clock& clock, Duration time) { return Deadline(clock.Now() + time); }
  static Deadline At(TimePoint point) { return Deadline(point); }
  TimePoint point() const { return point_; }
  bool Passed(Clock& clock) const { return clock.Now() >= point_; }
  Duration Left(Clock& clock) const {
    const Duration left = point_ - clock.Now();
    return left > Duration::zero() ? left : Duration::zero();
  }
  friend auto operator<=>(const Deadline&, const Deadline&) = default;

 private:
  explicit Deadline(TimePoint point) : point_(point) {}
  TimePoint point_;
};

inline double MsOf(Duration time) { return std::chrono::duration<double, std::milli>(time).count(); }
inline double UsOf(Duration time) { return std::chrono::duration<double, std::micro>(time).count(); }

// "2026-11-29T21:22:42Z" (RFC 3339, UTC, whole seconds).
std::string Rfc3339(std::chrono::system_clock::time_point when);

}  // namespace bascule
