#include "examples/03_rl_loop/parity_probe.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

namespace bascule::rl_loop {
namespace {

constexpr int kPrompts = 4;
constexpr Duration kAnswerTimeout = std::chrono::seconds(60);

}  // namespace

ParityProbe::ParityProbe(RolloutClient& client, const SortTask& task, std::uint64_t seed)
    : client_(client), seed_(seed) {
  std::mt19937_64 random(seed);
  for (int p = 0; p < kPrompts; ++p) {
    std::vector<TokenId> prompt = task.SamplePrompt(random);
    std::vector<TokenId> sorted(prompt.begin() + 1, prompt.end() - 1);
    std::sort(sorted.begin(), sorted.end());
    for (const TokenId next : sorted) {
      prompts_.push_back(prompt);
      prompt.push_back(next);
    }
  }
}

Result<ProbeAnswer> ParityProbe::Ask(std::uint64_t number, std::stop_token stop) const {
  std::vector<GenerateRequest> requests;
  for (const std::vector<TokenId>& prompt : prompts_) {
    requests.push_back({.prompt = prompt, .max_new_tokens = 1, .temperature = 1, .seed = seed_ + requests.size()});
  }
  ASSIGN_OR_RETURN(const std::vector<Rollout> rollouts,
                   client_.GenerateBatch(requests, Deadline::After(Clock::Real(), kAnswerTimeout), std::move(stop)));
  ProbeAnswer answer;
  for (const Rollout& rollout : rollouts) {
    if (rollout.tokens.size() != 1 || rollout.spans.size() != 1 || rollout.spans[0].version != number) {
      return Status::DataLoss("engine_disagrees",
                              fmt::format("asked version {} for one token, got {} of version {}", number,
                                          rollout.tokens.size(), rollout.spans.empty() ? 0 : rollout.spans[0].version));
    }
    answer.tokens.push_back(rollout.tokens[0]);
    answer.logprobs.push_back(rollout.logprobs[0]);
  }
  return answer;
}

double DeviationOf(const ProbeAnswer& answer, std::span<const float> expected) {
  const std::size_t vocab_size = expected.size() / answer.tokens.size();
  double sum = 0;
  for (std::size_t i = 0; i < answer.tokens.size(); ++i) {
    const float logprob = expected[i * vocab_size + static_cast<std::size_t>(answer.tokens[i])];
    sum += std::abs(std::exp(static_cast<double>(logprob - answer.logprobs[i])) - 1);
  }
  return sum / static_cast<double>(answer.tokens.size());
}

}  // namespace bascule::rl_loop
