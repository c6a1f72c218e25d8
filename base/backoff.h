// How long to leave alone what has failed so many times in a row: twice as long each time, up to a cap.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace bascule {

constexpr Duration BackoffDelay(int failures, Duration first, Duration cap) {
  Duration delay = first;
  for (int i = 1; i < failures && delay < cap; ++i) delay *= 2;
  return failures < 1 ? Duration::zero() : std::min(delay, cap);
}

}  // namespace bascule
