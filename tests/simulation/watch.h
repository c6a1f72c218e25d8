// What every part of a schedule may say of it.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace bascule::simulation {

struct Watch {
  // Ends the schedule: a promise was broken.
  std::function<void(std::string_view invariant, const std::string& what)> violation;
  // How long processes, or the machine, have stood still since then: no deadline counts that.
  std::function<Duration(TimePoint since)> stood_still_since;
};

}  // namespace bascule::simulation
