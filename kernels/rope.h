// Rotary position embedding, Hugging Face's half-split form: element i of a head's first half pairs with element i of
// its second half.
//
// Numerics: angles, sines and cosines in double, rounded to fp32 once; the rotation is two products and one sum, each
// rounded. Depends on position and theta only.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace bascule {

// theta^(-2 i / head_size) for i < head_size / 2.
std::vector<double> RopeFrequencies(double theta, std::int64_t head_size);

// Cosines and sines of position * frequency; each span is as long as `frequencies`.
void RopeAngles(std::span<const double> frequencies, std::int64_t position, std::span<float> cosines,
                std::span<float> sines);

// Rotates one head of 2 * cosines.size() elements in place.
void RopeOnHost(float* head, std::span<const float> cosines, std::span<const float> sines);

}  // namespace bascule
