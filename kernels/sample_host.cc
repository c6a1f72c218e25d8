#include "kernels/sample.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "kernels/exact_internal.h"

namespace bascule {
namespace {

constexpr std::array<std::uint32_t, 2> kPhiloxMultiplier = {0xD2511F53, 0xCD9E8D57};
constexpr std::array<std::uint32_t, 2> kPhiloxWeyl = {0x9E3779B9, 0xBB67AE85};
constexpr int kPhiloxRounds = 10;

// The first id at which the running sum of `weights` passes `uniform` times their total.
std::size_t InverseCdf(std::span<const float> weights, double uniform) {
  double total = 0;
  for (const float weight : weights) total += weight;
  double sum = 0;
  std::size_t last_possible = 0;
  for (std::size_t id = 0; id < weights.size(); ++id) {
    sum += weights[id];
    if (sum > uniform * total) return id;
    if (weights[id] > 0) last_possible = id;
  }
  return last_possible;
}

bool AllFinite(std::span<const float> logits) {
  return std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
}

}  // namespace

std::array<std::uint32_t, 4> Philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t first = std::uint64_t{kPhiloxMultiplier[0]} * counter[0];
    const std::uint64_t second = std::uint64_t{kPhiloxMultiplier[1]} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(first)};
    key = {key[0] + kPhiloxWeyl[0], key[1] + kPhiloxWeyl[1]};
  }
  return counter;
}

double UniformAt(std::uint64_t seed, std::uint64_t position) {
  const auto word = [](std::uint64_t bits) { return static_cast<std::uint32_t>(bits); };
  const auto random = Philox4x32({word(position), word(position >> 32), 0, 0}, {word(seed), word(seed >> 32)});
  const std::uint64_t bits = (std::uint64_t{random[1]} << 32 | random[0]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

std::optional<SampledToken> SampleOnHost(std::span<const float> logits, float temperature, double uniform,
                                         std::span<float> scratch, Isa isa) {
  CHECK(!logits.empty() && scratch.size() == logits.size());
  if (!AllFinite(logits)) return std::nullopt;
  const exact_internal::ExactKernels& kernels = exact_internal::KernelsOf(isa);
  const auto size = static_cast<std::int64_t>(logits.size());
  const float largest = kernels.largest(logits.data(), size);
  const float normaliser = kernels.exponentials(logits.data(), size, largest, 1.0f, scratch.data());
  std::size_t id = 0;
  if (temperature == 0) {
    id = static_cast<std::size_t>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
  } else {
    if (temperature != 1) kernels.exponentials(logits.data(), size, largest, temperature, scratch.data());
    id = InverseCdf(scratch, uniform);
  }
  const double logprob =
      static_cast<double>(logits[id]) - static_cast<double>(largest) - std::log(static_cast<double>(normaliser));
  return SampledToken{static_cast<std::int32_t>(id), static_cast<float>(logprob)};
}

}  // namespace bascule
