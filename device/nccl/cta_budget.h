// How many CTAs the kernels of NCCL may have of each device of this process.
//
// Such a kernel takes one CTA a channel, as good as a multiprocessor each, and spins until the kernels of its peers
// run. Kernels that do not all fit a device wait for those that were launched before them, and two devices that launch
// them in different orders then wait for each other for ever. So every communicator has a share of what fits: all of
// them may run at once, in whatever order they are launched.
//
// Thread-safety: thread-safe.
#pragma once

#include <map>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"
#include "device/device.h"

namespace bascule {

class CtaBudget;

// What one communicator has of its device's budget; destroying it gives that back. Thread-safety: thread-compatible.
class CtaShare {
 public:
  CtaShare() = default;
  CtaShare(CtaShare&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), ordinal_(other.ordinal_), ctas_(other.ctas_) {}
  CtaShare& operator=(CtaShare&& other) noexcept;
  ~CtaShare() { GiveBack(); }

  // No kernel of the communicator runs any more, nor ever will.
  void GiveBack();
  // Its kernels may run until the process ends.
  void KeepForEver() { budget_ = nullptr; }

 private:
  friend class CtaBudget;
  CtaShare(CtaBudget& budget, int ordinal, int ctas) : budget_(&budget), ordinal_(ordinal), ctas_(ctas) {}

  CtaBudget* budget_ = nullptr;  // null: it has nothing
  int ordinal_ = 0;
  int ctas_ = 0;
};

class CtaBudget {
 public:
  static CtaBudget& Get();  // the process's, which is never destroyed

  // For a communicator that is joined with `ctas` at most. It is counted with more where NCCL's environment, which goes
  // before what its caller asks for, makes it take more.
  //
  // ResourceExhausted "nccl_too_many"  the others of `device` have what there is: how many they are
  Result<CtaShare> Take(const DeviceDescription& device, int ctas) EXCLUDES(mu_);

 private:
  friend class CtaShare;
  struct Taken {
    int communicators = 0;
    int ctas = 0;
  };
  void GiveBack(int ordinal, int ctas) EXCLUDES(mu_);

  Mutex mu_;
  std::map<int, Taken> taken_ GUARDED_BY(mu_);  // by the ordinals of the devices
};

}  // namespace bascule
