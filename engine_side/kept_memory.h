// Memory must not go while work on a device uses it, and work that is not done when its owner goes may never be done.
//
// Thread-safety: thread-safe.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"

namespace bascule {

// Keeps `owner`, which has the memory of `what`, until the process ends, and logs why.
void KeepForEver(std::shared_ptr<const void> owner, std::string_view what, const Status& why);

}  // namespace bascule
