// What one decode step is made of: the tokens that go through the model and the draws that follow.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstdint>

#include "kernels/sample.h"

namespace bascule {

// One token that goes through the model. Rows of one request are in rising, gapless order of position, and everything
// before its first row is in the cache.
struct StepRow {
  std::int32_t token = 0;
  std::int64_t position = 0;
  const std::int32_t* pages = nullptr;  // of its request
  bool wants_logits = false;
};

// What is wanted of a row of logits: a token drawn by `rule`, with the random number of (seed, sample, position).
struct SampleWish {
  SampleRule rule;
  std::uint64_t seed = 0;
  std::uint32_t sample = 0;
  std::uint64_t position = 0;  // of the token that is drawn
};

}  // namespace bascule
