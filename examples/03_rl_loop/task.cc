#include "task.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace bascule::rl_loop {

std::vector<TokenId> SortTask::SamplePrompt(std::mt19937_64& random) const {
  // A shuffle by hand, because std::shuffle differs between standard libraries.
  std::vector<TokenId> digits(kDigitKinds);
  std::iota(digits.begin(), digits.end(), 0);
  for (int i = 0; i < digit_count; ++i) std::swap(digits[i], digits[i + random() % (kDigitKinds - i)]);
  std::vector<TokenId> prompt = {kStartToken};
  prompt.insert(prompt.end(), digits.begin(), digits.begin() + digit_count);
  prompt.push_back(kSortedToken);
  return prompt;
}

std::vector<float> SortTask::TokenRewards(std::span<const TokenId> prompt, std::span<const TokenId> response) const {
  const std::span<const TokenId> digits = prompt.subspan(1, digit_count);
  std::vector<TokenId> sorted(digits.begin(), digits.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<float> rewards(response_tokens(), 0.0f);
  const std::size_t scored = std::min(rewards.size(), response.size());
  for (std::size_t i = 0; i < scored; ++i) rewards[i] = response[i] == sorted[i] ? 1.0f : 0.0f;
  return rewards;
}

}  // namespace bascule::rl_loop
