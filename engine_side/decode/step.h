// What one decode step is made of: the tokens that go through the model and the draws that follow.
//
// Thread-safety: thread-compatible (values).
#pragma once

#include <cstdint>

namespace bascule {

// One token that goes through the model. Rows of one request are in rising, gapless order of position, and everything
// before its first row is in the cache.
struct StepRow {
  std::int32_t token = 0;
  std::int64_t position = 0;
  const std::int32_t* pages = nullptr;  // of its request
  bool wants_logits = false;
};

// How to draw a token from a row of logits.
struct SampleWish {
  float temperature = 0;
  std::uint64_t seed = 0;
  std::uint64_t position = 0;  // of the token that is drawn
};

}  // namespace bascule
