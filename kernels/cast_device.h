// cast.h on a device, bit for bit. The integer arithmetic is the same function: no conversion instruction is used,
// which would canonicalise a NaN.
//
// Thread-safety: thread-safe. Each enqueues on `stream` and returns; the memory stays as it is until `stream` passes
// this point. Errors of the device (device/device.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/stream.h"

namespace bascule {

// `count` elements; each memory is a multiple of its element's size, and they do not overlap. 16-byte accesses where
// both are multiples of 16.
Status CastF32ToBf16OnDevice(const std::byte* from, std::byte* to, std::int64_t count, StreamHandle stream);
Status CastBf16ToF32OnDevice(const std::byte* from, std::byte* to, std::int64_t count, StreamHandle stream);

}  // namespace bascule

// Roofline, per element: 4 bytes read and 2 written (to bf16), 2 read and 4 written (to fp32).
