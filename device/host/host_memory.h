// Host memory: anonymous, page-aligned, prefaulted, huge pages where the kernel gives them.
#pragma once

#include "device/buffer.h"

namespace bascule {

// Thread-safety: thread-safe; lives for the whole program.
DeviceMemory& HostMemory();

}  // namespace bascule
