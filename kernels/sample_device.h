// sample.h on a device: one token for each row of logits, the host's token for the same rule and number. The log-
// probability is the host's but for the last place, where the two round the logarithm of the normaliser differently.
//
// A rule that keeps only some candidates (top_k, top_p) or asks for top_logprobs is the host's to carry out.
//
// Thread-safety: thread-safe. Enqueues on `stream` and returns; the memory stays as it is until `stream` passes this
// point. Errors of the device (device/device.h).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/stream.h"
#include "kernels/sample.h"

namespace bascule {

// A row and its rule (SampleRule), in device memory, with what they point to.
struct SampleRow {
  const float* logits = nullptr;
  const std::int32_t* banned = nullptr;
  std::int64_t banned_count = 0;
  float temperature = 0;
  std::int32_t given = -1;
  double uniform = 0;  // UniformAt
};

// Scratch of one row of `size` logits.
constexpr std::int64_t SampleWeights(std::int64_t size) { return size; }                         // floats
constexpr std::int64_t SampleSums(std::int64_t size) { return (size + kCdfRun - 1) / kCdfRun; }  // doubles

// `tokens` receives one token a row, with the id -1 where a logit is infinite or not a number. `weights` holds
// rows * SampleWeights(size), `sums` rows * SampleSums(size).
Status SampleOnDevice(const SampleRow* rows, std::int64_t count, std::int64_t size, float* weights, double* sums,
                      TokenLogprob* tokens, StreamHandle stream);

}  // namespace bascule

// Roofline, per logit: 4 bytes read three times, twice from the second-level cache, and 4 bytes of weight written and
// read. A row is one block's: what a few rows cost is the latency of sixteen chains of size / 16 additions, some 40
// microseconds for a vocabulary of 150,000.
