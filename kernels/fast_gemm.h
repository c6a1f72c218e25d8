// The matrix product of a maintained library, for numerics "fast": y[r][o] = sum over k of x[r][k] * w[o][k], with x
// rounded to bf16 (nearest, ties to even) and bf16 weights.
//
// Numerics: the product of bf16 numbers is exact in fp32; sums are fp32, in an order that is the library's own and may
// depend on the number of rows, on the range of outputs, on the processor and on the release of the library. So an
// output lies within
//
//   2^-8 * sum |x[r][k]| * |w[o][k]|
//
// of the exact one: half of that is the rounding of x, the other half leaves room for sums of up to 2^14 elements.
// Subnormal numbers may count as zero.
//
// Thread-safety: Multiply is thread-safe on disjoint ranges of outputs.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/weight_view.h"

namespace bascule {

// bf16 elements of one packed row: rows begin on cache lines.
inline std::int64_t PackedBf16Width(std::int64_t k) { return (k + 31) / 32 * 32; }

// How many rows a product of `rows` rows really computes, at most a quarter more from 64 rows on: a library prepares
// itself for each number of rows that it meets, and so meets few.
inline std::int64_t RowsComputed(std::int64_t rows) {
  const auto eighth = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)) / 8);
  const std::int64_t step = std::max<std::int64_t>(16, eighth);
  return (rows + step - 1) / step * step;
}

struct FastGemmProblem {
  // Bf16 rows of PackedBf16Width(k) elements. It and `y` have memory for RowsComputed(rows) rows; what is in the rows
  // beyond `rows` does not matter, and what comes to lie there means nothing.
  const std::byte* x = nullptr;
  std::int64_t rows = 0;
  std::int64_t k = 0;
  const std::byte* w = nullptr;  // bf16, row o begins at element o * k
  float* y = nullptr;
  std::int64_t y_stride = 0;
  bool accumulate = false;  // y += the product instead of y =
};

class FastGemm {
 public:
  virtual ~FastGemm() = default;
  // From so many rows on it is faster than GemmOnHost, which with fewer waits for memory alone.
  virtual std::int64_t least_rows() const = 0;
  // Computes outputs [first, last) of every row, on the calling thread.
  virtual void Multiply(const FastGemmProblem& problem, std::int64_t first, std::int64_t last) = 0;
};

}  // namespace bascule

// Roofline: as gemm.h, with the library's bf16 multiply-adds: from least_rows() on they are the limit.
