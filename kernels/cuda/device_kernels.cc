#include "kernels/device_kernels.h"

#include "kernels/activations_device.h"
#include "kernels/cast_device.h"
#include "kernels/digest_device.h"
#include "kernels/gemm_device.h"
#include "kernels/pack_device.h"
#include "kernels/quantize_device.h"

extern "C" const bascule::DeviceKernels* bascule_cuda_kernels() {
  static const bascule::DeviceKernels kernels = {
      .move_boxes = bascule::MoveBoxesOnDevice,
      .move_and_digest_boxes = bascule::MoveAndDigestBoxesOnDevice,
      .digest_boxes = bascule::DigestBoxesOnDevice,
      .extract_changes = bascule::ExtractChangesOnDevice,
      .scatter = bascule::ScatterOnDevice,
      .digest_changes = bascule::DigestChangesOnDevice,
      .cast_f32_to_bf16 = bascule::CastF32ToBf16OnDevice,
      .cast_bf16_to_f32 = bascule::CastBf16ToF32OnDevice,
      .quantize_fp8_blocks = bascule::QuantizeFp8BlocksOnDevice,
      .dequantize_fp8_blocks = bascule::DequantizeFp8BlocksOnDevice,
      .rms_norm = bascule::RmsNormOnDevice,
      .add = bascule::AddOnDevice,
      .swiglu = bascule::SwigluOnDevice,
      .rope = bascule::RopeOnDevice,
      .store_kv = bascule::StoreKvOnDevice,
      .attention = bascule::AttentionOnDevice,
      .store_kv_rows = bascule::StoreKvRowsOnDevice,
      .attention_rows = bascule::AttentionRowsOnDevice,
      .take_rows = bascule::TakeRowsOnDevice,
      .place_rows = bascule::PlaceRowsOnDevice,
      .rms_norm_heads = bascule::RmsNormHeadsOnDevice,
      .swiglu_rows = bascule::SwigluRowsOnDevice,
      .split_into_bf16 = bascule::SplitIntoBf16OnDevice,
      .sum_pieces = bascule::SumPiecesOnDevice,
      .sample = bascule::SampleOnDevice,
  };
  return &kernels;
}
