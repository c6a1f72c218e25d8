// rms_norm.h, rope.h, swiglu.h and add.h on a device, for many rows at once and with the host's bits: sums keep its
// order for each lane and its tree over lanes, exponentials are its polynomial, and no product is fused that is not
// there.
//
// Thread-safety: thread-safe. Each enqueues on `stream` and returns; the memory stays as it is until `stream` passes
// this point. Errors of the device (device/device.h).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/stream.h"
#include "kernels/weight_view.h"

namespace bascule {

// Rows of `size` floats, side by side; `w` is one row of weights. `y` may be `x`.
Status RmsNormOnDevice(const float* x, std::int64_t rows, std::int64_t size, WeightView w, float eps, float* y,
                       StreamHandle stream);

// y[r][i] += x[r][i]; row r of `x` begins at element r * x_stride, which is 0 for a bias.
Status AddOnDevice(WeightView x, std::int64_t x_stride, std::int64_t rows, std::int64_t size, float* y,
                   StreamHandle stream);

// y[i] = silu(gate[i]) * up[i] of `count` floats. `y` may be `gate` or `up`.
Status SwigluOnDevice(const float* gate, const float* up, std::int64_t count, float* y, StreamHandle stream);

// Rotates `heads` heads of 2 * half floats, side by side in each of `rows` rows `row_stride` apart, in place. Row r of
// `cosines` and `sines` (RopeAngles of its position) begins at r * half.
Status RopeOnDevice(float* x, std::int64_t rows, std::int64_t row_stride, std::int64_t heads, std::int64_t half,
                    const float* cosines, const float* sines, StreamHandle stream);

}  // namespace bascule

// Roofline, per element: 8 bytes read and 4 written to normalise (the second read from the first-level cache), and the
// weight; 8 and 4 to add or gate; 4 and 4 to rotate. The sum of squares is sixteen chains of size / 16 additions, a
// microsecond for 4096: latency, not bandwidth, is what a few rows cost.
