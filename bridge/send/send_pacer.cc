#include "bridge/send/send_pacer.h"

#include <algorithm>

namespace bascule {

Status SendPacer::Pass(std::int64_t bytes, Deadline deadline, const std::stop_token& stop) {
  const auto takes = std::chrono::duration<double>(static_cast<double>(bytes) / static_cast<double>(bytes_per_second_));
  TimePoint turn;
  {
    MutexLock lock(mu_);
    turn = std::max(next_, clock_.Now());
    next_ = turn + std::chrono::duration_cast<Duration>(takes);
  }
  if (!clock_.SleepUntil(std::min(turn, deadline.point()), stop)) return Status::Cancelled("cancelled");
  if (turn <= deadline.point()) return OkStatus();
  return Status::DeadlineExceeded("deadline", fmt::format("held to {} bytes a second", bytes_per_second_));
}

}  // namespace bascule
