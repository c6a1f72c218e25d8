#include <utility>

#include "base/log.h"
#include "engine_side/decode/grpc/write_watch_internal.h"

namespace bascule {

WriteWatch::WriteWatch(Duration patience)
    : patience_(patience), worker_("write-watch", [this](std::stop_token stop) {
        Clock& clock = Clock::Real();
        while (clock.SleepUntil(clock.Now() + patience_ / 4, stop)) CancelOverdue();
      }) {}

std::uint64_t WriteWatch::Add(grpc::ServerContext& context) {
  MutexLock lock(mu_);
  waiting_[++last_number_] = {&context, Clock::Real().Now() + patience_};
  return last_number_;
}

void WriteWatch::Remove(std::uint64_t number) {
  MutexLock lock(mu_);
  waiting_.erase(number);
}

void WriteWatch::CancelOverdue() {
  MutexLock lock(mu_);
  const TimePoint now = Clock::Real().Now();
  while (!waiting_.empty() && waiting_.begin()->second.until <= now) {
    grpc::ServerContext& context = *waiting_.begin()->second.context;
    LogWarn("stream_not_read", "peer={} for_ms={:.0f}", context.peer(), MsOf(patience_));
    context.TryCancel();
    waiting_.erase(waiting_.begin());
  }
}

}  // namespace bascule
