// Counts what a process holds, to find leaks.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

#include "base/clock.h"

namespace bascule {

std::size_t OpenDescriptors();                       // entries of /proc/self/fd
std::size_t RunningThreads();                        // entries of /proc/self/task
std::size_t MappingsOf(std::string_view name_part);  // lines of /proc/self/maps that contain it

// Asks until `condition` holds, which it does before `deadline` if it returns true. For what happens in another thread
// or process and cannot be waited for.
bool Eventually(const std::function<bool()>& condition, Deadline deadline);

}  // namespace bascule
