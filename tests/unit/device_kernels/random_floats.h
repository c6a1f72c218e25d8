// Activations and weights for the parity tests.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/weight_view.h"
#include "tests/unit/kernels/random_boxes.h"

namespace bascule {

inline std::vector<float> RandomFloats(Random& random, std::size_t count) {
  std::vector<float> floats(count);
  std::normal_distribution<float> normal(0, 2);
  for (float& one : floats) one = normal(random);
  return floats;
}

inline std::vector<std::byte> RandomWeights(Random& random, WeightType type, std::size_t count) {
  const std::vector<float> floats = RandomFloats(random, count);
  const auto bytes = std::as_bytes(std::span(floats));
  if (type == WeightType::kF32) return {bytes.begin(), bytes.end()};
  std::vector<std::byte> halves;  // the upper ones
  for (std::size_t i = 0; i < count; ++i) halves.insert(halves.end(), {bytes[4 * i + 2], bytes[4 * i + 3]});
  return halves;
}

inline std::vector<std::uint32_t> Bits(std::span<const float> floats) {
  std::vector<std::uint32_t> bits;
  for (const float one : floats) bits.push_back(std::bit_cast<std::uint32_t>(one));
  return bits;
}

}  // namespace bascule
