// How long a flip may stop decoding.
//
// Thread-safety: thread-compatible (a value).
#pragma once

#include "base/clock.h"

namespace bascule {

struct StallBudget {
  Duration limit{};     // zero: no limit
  bool refuse = false;  // a flip that would take longer: refused at once; else postponed to when nothing decodes, until
                        // the session's deadline
};

}  // namespace bascule
