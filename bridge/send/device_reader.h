// Boxes of a device's memory as the host reads them, for whoever looks at weights or carries them without a device's
// help: a few megabytes at a time come densely into pinned memory.
#pragma once

#include <memory>
#include <vector>

#include "bridge/send/box_reader.h"
#include "bridge/send/weight_device.h"

namespace bascule {

// `device` is borrowed. Next fails with Unavailable "read_failed", and what the device says.
std::unique_ptr<BoxReader> ReadDeviceMemory(std::vector<SourceBox> boxes, WeightDevice& device);

}  // namespace bascule
