#include "device/stream.h"

#include <algorithm>

namespace bascule {

Status AwaitEvent(DeviceEvent& event, Deadline deadline, Clock& clock, Duration longest_nap) {
  // Short naps at first, for work that is nearly done.
  constexpr Duration kShortest = std::chrono::microseconds(20);
  for (Duration nap = std::min(kShortest, longest_nap);; nap = std::min(nap * 2, longest_nap)) {
    ASSIGN_OR_RETURN(const bool passed, event.Passed());
    if (passed) return OkStatus();
    if (deadline.Passed(clock)) {
      return Status::DeadlineExceeded("device_deadline", "work on the device is not done");
    }
    clock.SleepUntil(std::min(clock.Now() + nap, deadline.point()), {});
  }
}

}  // namespace bascule
