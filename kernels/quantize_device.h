// quantize.h on a device, bit for bit: the quotient is the correctly rounded one, and codes come from integers, not
// from a conversion instruction.
//
// Thread-safety: thread-safe. Each enqueues on `stream` and returns; the memory stays as it is until `stream` passes
// this point. Errors of the device (device/device.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/stream.h"

namespace bascule {

// The index of the first element that is infinite or NaN goes to `first_not_finite`, -1 when there is none; what was
// written then means nothing. `bf16` is a multiple of 2, `scale_inv` and `first_not_finite` of their elements' sizes;
// 16-byte accesses where `bf16` and `codes` are multiples of 16 and `columns` of 8.
Status QuantizeFp8BlocksOnDevice(std::int64_t rows, std::int64_t columns, const std::byte* bf16, std::byte* codes,
                                 float* scale_inv, std::int64_t* first_not_finite, StreamHandle stream);
Status DequantizeFp8BlocksOnDevice(std::int64_t rows, std::int64_t columns, const std::byte* codes,
                                   const float* scale_inv, std::byte* bf16, StreamHandle stream);

}  // namespace bascule

// Roofline, per element: 2 bytes read and 1 written to quantise, 1 read and 2 written to dequantise. A block of 32 KiB
// stays in the registers of its thread block between the two looks at it.
