// Copies memory until told to fail: the seam through which faults get into a flip in place.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstring>
#include <functional>
#include <utility>

#include "base/mutex.h"
#include "engine_side/block_exchange.h"

namespace bascule {

class FaultyCopier final : public BlockCopier {
 public:
  enum class Fault { kNone, kFails, kFailsForGood, kCopiesOtherBytes };

  // The `copy`-th copy from now on (0: the next) has `fault`.
  void FailAt(int copy, Fault fault) {
    MutexLock lock(mu_);
    left_ = copy;
    fault_ = fault;
  }
  std::function<void()> on_copy = [] {};  // set before the first copy
  int copies() const {
    MutexLock lock(mu_);
    return copies_;
  }

  Status Copy(std::span<std::byte> to, std::span<const std::byte> from) override {
    on_copy();
    const Fault fault = NextFault();
    const bool fails = fault == Fault::kFails || fault == Fault::kFailsForGood;
    std::memcpy(to.data(), from.data(), fails ? from.size() / 2 : from.size());
    if (fault == Fault::kCopiesOtherBytes) to[to.size() / 3] ^= std::byte{0x10};
    return fails ? Status::Unavailable("copy_failed", "injected") : OkStatus();
  }

 private:
  Fault NextFault() {
    MutexLock lock(mu_);
    ++copies_;
    if (fault_ == Fault::kNone || left_-- > 0) return Fault::kNone;
    return fault_ == Fault::kFailsForGood ? fault_ : std::exchange(fault_, Fault::kNone);
  }

  mutable Mutex mu_;
  int copies_ GUARDED_BY(mu_) = 0;
  int left_ GUARDED_BY(mu_) = 0;
  Fault fault_ GUARDED_BY(mu_) = Fault::kNone;
};

}  // namespace bascule
