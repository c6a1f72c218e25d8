// Weights that come from files or lie in host memory, as a trainer on a GPU has them: a copy of everything that a
// source holds, in memory of a device, each tensor dense and in the type that it had.
//
// Thread-safety: thread-safe (a pure function).
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "bridge/send/weight_device.h"
#include "trainer_side/tensor_source.h"

namespace bascule {

// One allocation for each sending rank that `source` holds. The result borrows nothing of `source`.
//
// ResourceExhausted "device_memory"; DeadlineExceeded "device_deadline"; errors of the device; as BoxReader::Next
Result<TensorSource> CopyToDevice(const WeightSource& source, std::shared_ptr<WeightDevice> device, Deadline deadline);

}  // namespace bascule
