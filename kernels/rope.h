// Rotary position embedding, Hugging Face's half-split form: element i of a head's first half pairs with element i of
// its second half.
//
// Numerics: frequencies, angles, sines and cosines in double, rounded to fp32 once; the rotation is two products and
// one sum, each rounded. Depends on position and frequencies only.
//
// Thread-safety: thread-safe (pure functions).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace bascule {

// theta^(-2 i / head_size) for i < head_size / 2.
std::vector<double> RopeFrequencies(double theta, std::int64_t head_size);

// Llama 3's scaling ("rope_type": "llama3") for longer contexts than a model was first trained on: frequencies that
// turn fewer than `low_frequency_factor` times within `original_positions` are divided by `factor`, those that turn
// more than `high_frequency_factor` times stay, and between the two the one passes into the other in proportion to the
// turns.
struct RopeStretch {
  double factor = 1;  // 1: none
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  double original_positions = 8192;
  friend bool operator==(const RopeStretch&, const RopeStretch&) = default;
};
void StretchFrequencies(const RopeStretch& stretch, std::span<double> frequencies);

// Cosines and sines of position * frequency; each span is as long as `frequencies`.
void RopeAngles(std::span<const double> frequencies, std::int64_t position, std::span<float> cosines,
                std::span<float> sines);

// Rotates one head of 2 * cosines.size() elements in place.
void RopeOnHost(float* head, std::span<const float> cosines, std::span<const float> sines);

}  // namespace bascule

// Roofline, per element: 4 bytes read and 4 written to rotate. Angles cost a sine and a cosine in double for each
// frequency, once for all heads of a position.
