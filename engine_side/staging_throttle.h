// Stage: staging (transport -> [staging] -> verify)
//
// How much of the time staging may work while requests decode: a feedback loop from the duration of decode steps to the
// pauses between buckets. Steps beside which nothing was staged say what a step takes; those beside which something was
// say what staging costs; staging then gets the share of the time at which a step takes `slowdown` times as long, and
// never less than kLeastShare, so that every version arrives. Where nothing decodes it does not pause.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace bascule {

class StagingThrottle {
 public:
  static constexpr double kLeastShare = 0.1;

  // `slowdown` is more than 1.
  StagingThrottle(double slowdown, Clock& clock) : slowdown_(slowdown), clock_(clock) {}

  // A decode step of `rows` requests, and of no prompt, took `took` and ends now.
  void StepTook(std::int64_t rows, Duration took) EXCLUDES(mu_);
  // A staging thread has worked for `work`: how long it is to pause.
  Duration PauseAfter(Duration work) EXCLUDES(mu_);
  // Of the time, for staging beside decoding.
  double share() const EXCLUDES(mu_);

 private:
  bool Decoding() const REQUIRES(mu_);
  double ShareNow() const REQUIRES(mu_);

  const double slowdown_;
  Clock& clock_;
  mutable Mutex mu_;
  std::map<std::int64_t, Duration> undisturbed_ GUARDED_BY(mu_);  // a step takes, by its rows
  double cost_ GUARDED_BY(mu_) = 1;    // by which a step grows, in its own durations, were staging to work all the time
  Duration staged_ GUARDED_BY(mu_){};  // worked since the last step
  Duration last_took_ GUARDED_BY(mu_){};  // the last step
  TimePoint last_end_ GUARDED_BY(mu_);
};

// How threads that stage behave beside those that decode.
struct StagingThreads {
  int nice = 10;  // once a version is live they give way: 0 (not at all) to 19; see base/thread_priority.h
  std::vector<int> cores = {};          // that they keep to; none: any
  StagingThrottle* throttle = nullptr;  // borrowed; null: they never pause
};

}  // namespace bascule
