// The kernels of a device, as its module brings them: one table, and no library to link.
//
// Thread-safety: thread-safe.
#pragma once

#include "base/status.h"
#include "device/stream.h"
#include "kernels/attention_device.h"
#include "kernels/box_moves.h"
#include "kernels/delta_device.h"
#include "kernels/rows_device.h"
#include "kernels/sample_device.h"
#include "kernels/weight_view.h"

namespace bascule {

// Each enqueues on the stream and returns. Contracts: the header named beside each group.
struct DeviceKernels {
  // kernels/pack_device.h
  Status (*move_boxes)(const MoveBatch& batch, StreamHandle stream);
  Status (*move_and_digest_boxes)(const MoveBatch& batch, StreamHandle stream);
  // kernels/digest_device.h
  Status (*digest_boxes)(const MoveBatch& batch, StreamHandle stream);
  // kernels/delta_device.h
  Status (*extract_changes)(const CompareBatch& batch, StreamHandle stream);
  Status (*scatter)(const ChangeBatch& batch, StreamHandle stream);
  Status (*digest_changes)(const ChangeBatch& batch, StreamHandle stream);
  // kernels/cast_device.h
  Status (*cast_f32_to_bf16)(const std::byte* from, std::byte* to, std::int64_t count, StreamHandle stream);
  Status (*cast_bf16_to_f32)(const std::byte* from, std::byte* to, std::int64_t count, StreamHandle stream);
  // kernels/quantize_device.h
  Status (*quantize_fp8_blocks)(std::int64_t rows, std::int64_t columns, const std::byte* bf16, std::byte* codes,
                                float* scale_inv, std::int64_t* first_not_finite, StreamHandle stream);
  Status (*dequantize_fp8_blocks)(std::int64_t rows, std::int64_t columns, const std::byte* codes,
                                  const float* scale_inv, std::byte* bf16, StreamHandle stream);
  // kernels/activations_device.h
  Status (*rms_norm)(const float* x, std::int64_t rows, std::int64_t size, WeightView w, float eps, float* y,
                     StreamHandle stream);
  Status (*add)(WeightView x, std::int64_t x_stride, std::int64_t rows, std::int64_t size, float* y,
                StreamHandle stream);
  Status (*swiglu)(const float* gate, const float* up, std::int64_t count, float* y, StreamHandle stream);
  Status (*rope)(float* x, std::int64_t rows, std::int64_t row_stride, std::int64_t heads, std::int64_t half,
                 const float* cosines, const float* sines, StreamHandle stream);
  // kernels/attention_device.h
  Status (*store_kv)(const KvStore* stores, std::int64_t count, StreamHandle stream);
  Status (*attention)(const AttentionProblem* problems, std::int64_t count, StreamHandle stream);
  Status (*store_kv_rows)(const PagedRows& cache, const float* keys, const float* values, std::int64_t row_stride,
                          std::int64_t rows, StreamHandle stream);
  Status (*attention_rows)(const AttentionRows& rows, std::int64_t first, std::int64_t count, StreamHandle stream);
  // kernels/rows_device.h
  Status (*take_rows)(const RowTable& table, const std::int32_t* index, std::int64_t count, float* y,
                      StreamHandle stream);
  Status (*place_rows)(const float* x, std::int64_t x_stride, std::int64_t rows, std::int64_t size, float* y,
                       std::int64_t y_stride, StreamHandle stream);
  Status (*rms_norm_heads)(float* x, std::int64_t rows, std::int64_t row_stride, std::int64_t heads, std::int64_t size,
                           WeightView w, float eps, StreamHandle stream);
  Status (*swiglu_rows)(const float* x, std::int64_t rows, std::int64_t size, float* y, StreamHandle stream);
  // kernels/gemm_device.h
  Status (*split_into_bf16)(const float* x, std::int64_t count, int pieces, std::uint16_t* split, StreamHandle stream);
  Status (*sum_pieces)(const float* z, std::int64_t rows, std::int64_t outputs, float* y, std::int64_t y_stride,
                       bool accumulate, StreamHandle stream);
  // kernels/sample_device.h
  Status (*sample)(const SampleRow* rows, std::int64_t count, std::int64_t size, float* weights, double* sums,
                   TokenLogprob* tokens, StreamHandle stream);
};

// Those of the CUDA module. As LoadCudaBackend; FailedPrecondition "backend_mismatch"  the module brings none
Result<const DeviceKernels*> LoadDeviceKernels();

}  // namespace bascule

// The part "kernels" of a module: DeviceBackend::Part gives this function.
extern "C" [[gnu::visibility("default")]] const bascule::DeviceKernels* bascule_cuda_kernels();

// Roofline: none; see each kernel's header.
