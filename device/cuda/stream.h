// A stream of one CUDA device, which the default stream does not hold up.
//
// Thread-safety: thread-compatible.
#pragma once

#include <memory>

#include "device/device.h"

namespace bascule {

// `device` outlives the stream.
Result<std::unique_ptr<DeviceStream>> MakeCudaStream(StreamPriority priority, const DeviceDescription& device);

}  // namespace bascule
