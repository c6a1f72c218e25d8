// The task: put a few distinct digits in ascending order. Its reward needs no model and no reference answer.
//
// A prompt is <start> digits <sorted>, a response as many digits. The reward of a response token is 1 where the digit
// stands in its right place and else 0; the reward of a response is the mean, from 0 to 1. A policy that picks tokens
// at random gets 1 / vocab_size.
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace bascule::rl_loop {

using TokenId = std::int32_t;

struct SortTask {
  // Tokens 0 to 9 are the digits.
  static constexpr TokenId kStartToken = 10;
  static constexpr TokenId kSortedToken = 11;
  static constexpr int kDigitKinds = 10;

  int digit_count = 5;  // 1 to kDigitKinds

  int prompt_tokens() const { return digit_count + 2; }
  int response_tokens() const { return digit_count; }

  // Uniform over all ordered choices of distinct digits; equal states of `random` give equal prompts everywhere.
  std::vector<TokenId> SamplePrompt(std::mt19937_64& random) const;

  // One reward for each of response_tokens(). A response that is cut short gets 0 for what is missing.
  std::vector<float> TokenRewards(std::span<const TokenId> prompt, std::span<const TokenId> response) const;
};

}  // namespace bascule::rl_loop
