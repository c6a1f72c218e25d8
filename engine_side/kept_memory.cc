#include "engine_side/kept_memory.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"

namespace bascule {

void KeepForEver(std::shared_ptr<const void> owner, std::string_view what, const Status& why) {
  LogWarn("device_memory_kept", "of=\"{}\" why=\"{}\"", what, why.ToString());
  static auto* const mu = new Mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;
  const MutexLock lock(*mu);
  kept->push_back(std::move(owner));
}

}  // namespace bascule
