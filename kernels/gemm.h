// Matrix product with the weights as they are stored, one output a row of weights: y[r][o] = sum over k of
// x[r][k] * w[o][k].
//
// Numerics: an output is 32 partial sums, added in a fixed tree. Element k goes to lane k mod 32:
//
//   lane[j] = fma(x[k], w[k], lane[j])  for k = j, j + 32, j + 64, ... in rising order, from +0
//   half[i] = lane[2 i] + lane[2 i + 1]                                        i = 0..15
//   half[i] = half[i] + half[i + n]     for n = 8, 4, 2, 1                     i = 0..n-1;  y = half[0]
//
// as though x and w were padded with zeros to a multiple of 32. The order depends on k only: not on the number of rows,
// on which outputs one call computes, or on the instruction set.
//
// Thread-safety: thread-safe (pure functions); calls on disjoint output ranges may run at once.
#pragma once

#include <cstdint>

#include "kernels/isa.h"
#include "kernels/weight_view.h"

namespace bascule {

// Floats of one packed row.
inline std::int64_t PackedWidth(std::int64_t k) { return (k + 31) / 32 * 32; }

// Rows of activations in the order in which the product reads them: in each block of 32 elements the even ones, then
// the odd ones (a 32-bit word of bf16 weights holds one of each), padded with zeros. `packed` holds
// rows * PackedWidth(k) floats, 64-byte aligned; row r of `x` begins at r * x_stride.
void PackRowsOnHost(const float* x, std::int64_t rows, std::int64_t k, std::int64_t x_stride, float* packed,
                    Isa isa = BestIsa());

struct GemmProblem {
  const float* packed_x = nullptr;  // from PackRowsOnHost
  std::int64_t rows = 0;
  std::int64_t k = 0;
  WeightView w;  // row o begins at element o * k
  float* y = nullptr;
  std::int64_t y_stride = 0;
  bool accumulate = false;  // y += the product instead of y =
};

// Computes outputs [first, last) of every row.
void GemmOnHost(const GemmProblem& problem, std::int64_t first, std::int64_t last, Isa isa = BestIsa());

}  // namespace bascule

// Roofline: with few rows the weights, read once at the speed of memory; with more (about 16) rows * k multiply-adds
// for each output, of fp32.
