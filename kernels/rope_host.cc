#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace bascule {

std::vector<double> RopeFrequencies(double theta, std::int64_t head_size) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_size / 2; ++i) {
    frequencies.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_size)));
  }
  return frequencies;
}

void StretchFrequencies(const RopeStretch& stretch, std::span<double> frequencies) {
  for (double& frequency : frequencies) {
    const double turns = stretch.original_positions * frequency / (2 * std::numbers::pi);
    const double unscaled = std::clamp(
        (turns - stretch.low_frequency_factor) / (stretch.high_frequency_factor - stretch.low_frequency_factor), 0.0,
        1.0);
    frequency = unscaled * frequency + (1 - unscaled) * frequency / stretch.factor;
  }
}

void RopeAngles(std::span<const double> frequencies, std::int64_t position, std::span<float> cosines,
                std::span<float> sines) {
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies[i];
    cosines[i] = static_cast<float>(std::cos(angle));
    sines[i] = static_cast<float>(std::sin(angle));
  }
}

void RopeOnHost(float* head, std::span<const float> cosines, std::span<const float> sines) {
  const std::size_t half = cosines.size();
  for (std::size_t i = 0; i < half; ++i) {
    const float first = head[i], second = head[half + i];
    head[i] = first * cosines[i] - second * sines[i];
    head[half + i] = second * cosines[i] + first * sines[i];
  }
}

}  // namespace bascule
