// One token from a row of logits, and the counter-based random numbers it is drawn with.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/isa.h"

namespace bascule {

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011), as in Random123.
std::array<std::uint32_t, 4> Philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

// A number of [0, 1) with 53 random bits that depends on (seed, position) only.
double UniformAt(std::uint64_t seed, std::uint64_t position);

struct SampledToken {
  std::int32_t id = 0;
  float logprob = 0;  // log softmax of the logits, untempered
};

// Temperature 0: the largest logit, the lowest id of equal ones. Otherwise the inverse of the cumulative distribution
// of softmax(logits / temperature) at `uniform`, summed in double in the order of ids. No value when a logit is
// infinite or not a number. `scratch` is as long as `logits`, which are not empty.
//
// Numerics: the normaliser is summed in fp32 in 16 lanes and the tree of gemm.h; its order depends on the size only.
std::optional<SampledToken> SampleOnHost(std::span<const float> logits, float temperature, double uniform,
                                         std::span<float> scratch, Isa isa = BestIsa());

}  // namespace bascule
