// The devices of the fake CUDA runtime, for tests that ctest runs over it.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "device/backend.h"

namespace bascule {

// Ends the program, and says how to run it, where the real runtime is loaded.
Device& FakeDevice(int ordinal = 0);

// Waits until all that was enqueued on `stream` has run. Errors of the device, and "device_deadline" after a while.
Status Drain(Device& device, DeviceStream& stream);

// Copies through pinned memory, on a stream of its own, and waits.
Status WriteDevice(Device& device, std::span<std::byte> to, std::span<const std::byte> from);
Result<std::vector<std::byte>> ReadDevice(Device& device, std::span<const std::byte> from);

}  // namespace bascule
