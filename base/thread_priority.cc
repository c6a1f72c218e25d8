#include "base/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include "base/log.h"

namespace bascule {

void GiveWay(int nice) {
  if (nice == 0) return;
  // On Linux a priority belongs to a thread, whatever PRIO_PROCESS says.
  if (setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice) != 0)
    LogWarn("priority", "nice={} errno={}", nice, errno);
}

}  // namespace bascule
