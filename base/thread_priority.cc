#include "base/thread_priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <fmt/ranges.h>

#include "base/log.h"

namespace bascule {

void GiveWay(int nice) {
  if (nice == 0) return;
  // On Linux a priority belongs to a thread, whatever PRIO_PROCESS says.
  if (setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice) != 0)
    LogWarn("priority", "nice={} errno={}", nice, errno);
}

void PinToCores(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) LogWarn("cores", "cores={} errno={}", fmt::join(cores, ","), errno);
}

Status CheckCores(const std::vector<int>& cores) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return OkStatus();  // as it is, then
  for (auto core = cores.begin(); core != cores.end(); ++core) {
    if (*core < 0 || *core >= CPU_SETSIZE || !CPU_ISSET(*core, &usable) ||
        std::find(cores.begin(), core, *core) != core) {
      return Status::InvalidArgument("bad_cores", fmt::format("core {} of {}", *core, fmt::join(cores, ",")));
    }
  }
  return OkStatus();
}

}  // namespace bascule
