// gemm.h on a device, by the vendor's library (cuBLAS): y[r][o] = sum over k of x[r][k] * w[o][k], fp32 activations and
// results, weights as they are stored.
//
// The library multiplies numbers of one type. fp32 weights meet the activations as they are. For bf16 weights an
// activation becomes a sum of three bf16 numbers, which holds all 24 bits of it, and each of them is a row of its own:
// the weights are read once, as for one, and the three results are added.
//
// Numerics: products are exact (bf16 weights) or rounded once (fp32); sums are fp32, in an order that is the library's
// own. So an output lies within
//
//   (k + 8) * 2^-23 * sum over k of |x[r][k]| * |w[o][k]|
//
// of the exact one, where |x| is 0 or of [2^-100, 2^127]; with activations rounded to bf16 (kBf16) within 2^-8 of that
// sum, as fast_gemm.h. The order depends on the number of rows, and on library and device: what is equal to the bit is
// the same product once more, with the same sizes, on the same device with the same library. Results are the host's
// (gemm.h) within the bound, never to the bit.
//
// Thread-safety: a DeviceGemm is confined to one stream at a time: it owns the memory that its products work in.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "device/device.h"
#include "device/stream.h"
#include "kernels/weight_view.h"

namespace bascule {

enum class ActivationPrecision { kFull, kBf16 };

// What cuBLAS works in; this is what it wants on Hopper.
inline constexpr std::int64_t kGemmWorkspaceBytes = std::int64_t{32} << 20;

struct DeviceGemmLimits {
  // Of products with bf16 weights, at most.
  std::int64_t activations = 0;  // rows * k
  std::int64_t results = 0;      // rows * outputs
  ActivationPrecision precision = ActivationPrecision::kFull;
  std::int64_t workspace_bytes = kGemmWorkspaceBytes;
};

struct DeviceGemmProblem {
  const float* x = nullptr;  // rows side by side
  std::int64_t rows = 0;
  std::int64_t k = 0;
  WeightView w;  // row o begins at element o * k
  std::int64_t outputs = 0;
  float* y = nullptr;
  std::int64_t y_stride = 0;
  bool accumulate = false;  // y += the product instead of y =
};

class DeviceGemm {
 public:
  virtual ~DeviceGemm() = default;
  // Enqueues and returns; may be captured. What the problem points to stays as it is until `stream` passes this point.
  //
  // Errors of the device, with the library's name for what went wrong
  virtual Status Multiply(const DeviceGemmProblem& problem, StreamHandle stream) = 0;
};

// The part "gemm" of a module. `device` outlives what is made. The library is opened by the first call, which takes a
// tenth of a second.
//
// Unavailable "no_cublas"  the library is not there or lacks a function: which, and where it was looked for
// Errors of the device
struct DeviceGemmPart {
  Result<std::unique_ptr<DeviceGemm>> (*make)(Device& device, const DeviceGemmLimits& limits);
};

// What surrounds the library's product, for `make` and for tests. Each enqueues on `stream` and returns.
//
// pieces[p][i] of `count` fp32 numbers: bf16 numbers of falling size, p = 0..2, that add up to x[i]; the first is x[i]
// rounded to nearest even. `pieces` == 1: only that.
Status SplitIntoBf16OnDevice(const float* x, std::int64_t count, int pieces, std::uint16_t* split, StreamHandle stream);
// y[r][o] = (or +=) (z[2][r][o] + z[1][r][o]) + z[0][r][o].
Status SumPiecesOnDevice(const float* z, std::int64_t rows, std::int64_t outputs, float* y, std::int64_t y_stride,
                         bool accumulate, StreamHandle stream);

}  // namespace bascule

extern "C" [[gnu::visibility("default")]] const bascule::DeviceGemmPart* bascule_cuda_gemm();

// Roofline: with few rows the weights, read once (4.8 TB/s on an H200); with many, three times the multiply-adds of one
// bf16 product. The pieces cost 10 bytes an activation and the sum 16 to 20 bytes an output.
