#include "device/stream.h"

#include <algorithm>

namespace bascule {

Status AwaitEvent(DeviceEvent& event, Deadline deadline, Clock& clock) {
  // Short steps at first, for work that is nearly done; long ones do not cost a core.
  constexpr Duration kShortest = std::chrono::microseconds(20);
  constexpr Duration kLongest = std::chrono::microseconds(500);
  for (Duration step = kShortest;; step = std::min(step * 2, kLongest)) {
    ASSIGN_OR_RETURN(const bool passed, event.Passed());
    if (passed) return OkStatus();
    if (deadline.Passed(clock)) {
      return Status::DeadlineExceeded("device_deadline", "work on the device is not done");
    }
    clock.SleepUntil(std::min(clock.Now() + step, deadline.point()), {});
  }
}

}  // namespace bascule
