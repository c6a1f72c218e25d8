// How many files this process may open: sockets count too. Libraries below us end the process when they get none.
//
// Thread-safety: thread-safe.
#pragma once

#include "base/status.h"

namespace bascule {

// Raises this process's own limit to the most that it is allowed.
void RaiseDescriptorLimit();

// ResourceExhausted "descriptors"  fewer than `count` more can be opened now
Status CheckDescriptors(int count);

}  // namespace bascule
