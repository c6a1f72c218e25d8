#include "engine_side/engine_hooks.h"

namespace bascule {

Result<SafePoint> IdleHooks::RunAtSafePoint(std::uint64_t /*at_step*/, const std::function<void()>& critical,
                                            Deadline /*deadline*/) {
  MutexLock lock(mu_);
  critical();
  return SafePoint{};
}

KvReport IdleHooks::InvalidateKv(const WeightVersion& /*live*/) { return KvReport{}; }

}  // namespace bascule
