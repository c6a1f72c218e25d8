// Stage: staging (transport -> [staging] -> verify -> flip)
//
// The receive path's work on slots that lie in device memory. Frames of the host go through pinned memory, those of the
// device are moved where they are; a launch takes every box of a bucket, and a digest of all weights a few of them.
// Work is enqueued on streams of low priority, so that decoding goes first, and is ordered by events alone: nothing
// else on the device waits for it. All memory that it needs is made at the start.
//
// Thread-safety: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "device/device.h"
#include "engine_side/slot_work.h"

namespace bascule {

// What staging has on each device, and as much again of pinned host memory but for exchange_bytes.
struct DeviceStaging {
  int lanes = 4;                           // routes, and other readers of slots, that are served at a time
  std::int64_t lane_bytes = 2 << 20;       // of a lane's bytes in a batch, of which it has two; at least 4096
  std::size_t exchange_bytes = 16U << 20;  // that a flip in place saves aside at a time: within a second-level cache
};

// `devices` has the device of each engine rank; ranks may share one. Before it goes it waits for its work; what is not
// done then keeps its memory until the process ends.
//
// Errors of the device; as LoadDeviceKernels
Result<std::unique_ptr<SlotWork>> MakeDeviceSlotWork(const std::vector<Device*>& devices, const DeviceStaging& staging,
                                                     Clock& clock);

}  // namespace bascule
