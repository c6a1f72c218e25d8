// One token from a row of logits, and the counter-based random numbers it is drawn with.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/isa.h"

namespace bascule {

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), as in Random123.
std::array<std::uint32_t, 4> Philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// A number of [0, 1) with 53 random bits that depends on (seed, position, sample) only.
double UniformAt(std::uint64_t seed, std::uint64_t position, std::uint32_t sample = 0);

inline constexpr std::int64_t kCdfRun = 1024;

struct TokenLogprob {
  std::int32_t id = 0;
  float logprob = 0;  // log softmax of the logits: untempered, nothing left out
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

struct SampledToken {
  std::int32_t id = 0;
  float logprob = 0;  // as TokenLogprob
  std::vector<TokenLogprob> top =
      {};  // SampleRule::top_logprobs of them, the most probable first, the lower id of equal ones
};

// How a token is chosen. First the banned tokens are left out, then all but the `top_k` most probable ones, then all
// but the fewest most probable of the rest that together have at least `top_p` of its probability. Of equally probable
// tokens the lower id comes first. Probabilities are those of softmax(logits / temperature).
struct SampleRule {
  float temperature = 0;                      // 0: the largest logit, the lowest id of equal ones
  std::int32_t top_k = 0;                     // 0: all
  float top_p = 1;                            // of (0, 1]
  std::span<const std::int32_t> banned = {};  // unless they are the whole vocabulary; ids outside it are ignored
  std::int32_t top_logprobs = 0;              // how many to give beside the chosen one
  std::int32_t given = -1;                    // a token: it is chosen, nothing is drawn
};

// At temperatures above 0 the token is the inverse of the cumulative distribution at `uniform`, summed in double: the
// weights of kCdfRun ids in order, and these sums in order. No value when a logit is infinite or not a number.
// `scratch` is as long as `logits`, which are not empty.
//
// Numerics: the normaliser is summed in fp32 in 16 lanes and the tree of gemm.h; its order depends on the size only.
std::optional<SampledToken> SampleOnHost(std::span<const float> logits, const SampleRule& rule, double uniform,
                                         std::span<float> scratch, Isa isa = BestIsa());

}  // namespace bascule

// Roofline, per logit: 4 bytes read twice and an exponential; above temperature 0 a second one, whose weight is written
// and read.
