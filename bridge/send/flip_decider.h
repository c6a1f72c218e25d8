// Who decides whether a version that is ready on a replica goes live there. Without one it does at once.
#pragma once

#include <functional>
#include <optional>

#include "base/status.h"
#include "bridge/manifest/manifest.h"

namespace bascule {

// One replica's part in a decision. Thread-safety: Ready and Withdraw from the session's thread; the rest thread-safe.
class FlipDecider {
 public:
  virtual ~FlipDecider() = default;
  // The version is verified on this replica. `wake` is called, from other threads too, once the decision is made.
  virtual void Ready(const WeightVersion& version, std::function<void()> wake) = 0;
  // Nothing while it is open; OK: flip; else why not.
  virtual std::optional<Status> decision() const = 0;
  // This replica waits no longer, because of `why`. What has been decided by then stands and is returned; afterwards
  // `wake` is not called any more.
  virtual std::optional<Status> Withdraw(const Status& why) = 0;
};

}  // namespace bascule
