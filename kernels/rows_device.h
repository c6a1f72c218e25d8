// What the rows of a decode step need on a device beside products and attention: rows taken out of a table, heads
// normalised inside wider rows, gate and up side by side. The bits are those of the host's loops over rms_norm.h,
// swiglu.h and WidenOnHost.
//
// Thread-safety: thread-safe. Each enqueues on `stream` and returns; the memory stays as it is until `stream` passes
// this point. Errors of the device (device/device.h).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/stream.h"
#include "kernels/weight_view.h"

namespace bascule {

// Rows of `size` elements, of which this memory has [first, first + rows).
struct RowTable {
  WeightView data;
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::int64_t size = 0;
};

// y[r] = row index[r] of the table, widened; zeros where the table has no such row. Rows of `y` lie side by side.
Status TakeRowsOnDevice(const RowTable& table, const std::int32_t* index, std::int64_t count, float* y,
                        StreamHandle stream);

// Row r of `x`, from element r * x_stride on, to row r of `y`, from element r * y_stride on.
Status PlaceRowsOnDevice(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t size, float* y,
                         std::int64_t y_stride, StreamHandle stream);

// Normalises, in place, the first `heads` heads of `size` floats in each of `rows` rows `row_stride` apart.
Status RmsNormHeadsOnDevice(float* x, std::int64_t rows, std::int64_t row_stride, std::int64_t heads, std::int64_t size,
                            WeightView w, float eps, StreamHandle stream);

// y[r][i] = silu(x[r][i]) * x[r][size + i]: rows of 2 * size floats become rows of `size`.
Status SwigluRowsOnDevice(const float* x, std::int64_t rows, std::int64_t size, float* y, StreamHandle stream);

}  // namespace bascule

// Roofline, per element: the table's element read and 4 bytes written to take; 4 and 4 to place; 8 and 4 to normalise;
// 8 and 4 for SwiGLU. All of them together are a few thousandths of what a step reads of weights: what they cost is
// their launches, which a captured graph does not pay.
