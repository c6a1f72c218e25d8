// A stop for work that is done on behalf of a caller.
//
// Thread-safety: confined to the thread of its call.
#pragma once

#include <grpcpp/grpcpp.h>

#include <stop_token>

#include "base/clock.h"
#include "base/worker.h"

namespace bascule {

// How often running work looks whether its caller is still there.
inline constexpr Duration kCallerPoll = std::chrono::milliseconds(100);

// Requests a stop once the caller of a call has gone away, or `stopping`.
class CallerWatch {
 public:
  CallerWatch(grpc::ServerContext& context, std::stop_token stopping)
      : worker_("caller-watch", [this, &context, stopping](std::stop_token done) {
          Clock& clock = Clock::Real();
          while (!context.IsCancelled() && !stopping.stop_requested()) {
            if (!clock.SleepUntil(clock.Now() + kCallerPoll, done)) return;
          }
          stop_.request_stop();
        }) {}
  std::stop_token token() const { return stop_.get_token(); }

 private:
  std::stop_source stop_;
  Worker worker_;
};

}  // namespace bascule
