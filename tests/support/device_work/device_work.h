// What tests do on a device over and over, whatever runtime is under it.
#pragma once

#include <span>
#include <vector>

#include "device/device.h"

namespace bascule {

// Waits until all that was enqueued on `stream` has run. Errors of the device, and "device_deadline" after a while.
Status Drain(Device& device, DeviceStream& stream);

// Copies through pinned memory, on a stream of its own, and waits.
Status WriteDevice(Device& device, std::span<std::byte> to, std::span<const std::byte> from);
Result<std::vector<std::byte>> ReadDevice(Device& device, std::span<const std::byte> from);

}  // namespace bascule
