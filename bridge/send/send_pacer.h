// Spreads frames over time, so that a publish leaves room for what else uses the machine or the network: one pacer for
// all sending threads of a publisher, whatever they send to. Without an idle credit: a pause buys no burst.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstdint>
#include <stop_token>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace bascule {

class SendPacer {
 public:
  // `bytes_per_second` is positive; `clock` is borrowed.
  SendPacer(std::int64_t bytes_per_second, Clock& clock) : bytes_per_second_(bytes_per_second), clock_(clock) {}

  // Waits until everything let through before has had its time, then lets `bytes` through.
  //
  // DeadlineExceeded "deadline"; Cancelled "cancelled" (`stop`)
  Status Pass(std::int64_t bytes, Deadline deadline, const std::stop_token& stop) EXCLUDES(mu_);

 private:
  const std::int64_t bytes_per_second_;
  Clock& clock_;
  Mutex mu_;  // Guards the next turn; never held across a wait.
  TimePoint next_ GUARDED_BY(mu_);
};

}  // namespace bascule
