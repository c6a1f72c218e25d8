#include "examples/03_rl_loop/rollouts.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

namespace bascule::rl_loop {
namespace {

constexpr Duration kBatchTimeout = std::chrono::seconds(120);

// SplitMix64's finaliser: neighbouring inputs give unrelated seeds.
std::uint64_t Mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Appends the row of one response.
Status AddRow(const SortTask& task, const std::vector<TokenId>& prompt, const Rollout& rollout, SampledBatch& batch) {
  if (rollout.tokens.size() != static_cast<std::size_t>(task.response_tokens())) {
    return Status::DataLoss("short_rollout", fmt::format("tokens={} want={} finish={}", rollout.tokens.size(),
                                                         task.response_tokens(), FinishName(rollout.finish)));
  }
  batch.token_ids.insert(batch.token_ids.end(), prompt.begin(), prompt.end());
  batch.token_ids.insert(batch.token_ids.end(), rollout.tokens.begin(), rollout.tokens.end());
  batch.logprobs.insert(batch.logprobs.end(), rollout.logprobs.begin(), rollout.logprobs.end());
  const std::vector<float> rewards = task.TokenRewards(prompt, rollout.tokens);
  batch.rewards.insert(batch.rewards.end(), rewards.begin(), rewards.end());
  for (const RolloutSpan& span : rollout.spans) {
    batch.token_versions.insert(batch.token_versions.end(), static_cast<std::size_t>(span.end - span.begin),
                                span.version);
  }
  return OkStatus();
}

}  // namespace

double SampledBatch::MeanReward() const {
  return std::accumulate(rewards.begin(), rewards.end(), 0.0) / static_cast<double>(rewards.size());
}

double SampledBatch::MeanStaleness(std::uint64_t version) const {
  double behind = 0;
  for (const std::uint64_t made_by : token_versions) behind += static_cast<double>(version - made_by);
  return behind / static_cast<double>(token_versions.size());
}

std::int64_t SampledBatch::StaleTokens(std::uint64_t version) const {
  return std::count_if(token_versions.begin(), token_versions.end(),
                       [version](std::uint64_t made_by) { return made_by < version; });
}

RolloutSampler::RolloutSampler(RolloutClient& client, SortTask task, RolloutOptions options)
    : client_(client), task_(task), options_(options) {}

Background<SampledBatch> RolloutSampler::Request(std::uint64_t number) {
  return {"rollouts", [this, number](std::stop_token stop) { return Sample(number, std::move(stop)); }};
}

std::vector<GenerateRequest> RolloutSampler::RequestsOf(std::uint64_t number) const {
  const std::uint64_t batch_seed = Mix(Mix(options_.seed) ^ number);
  std::mt19937_64 random(batch_seed);
  const int begin = options_.prompt_count * options_.rank / options_.ranks;
  const int end = options_.prompt_count * (options_.rank + 1) / options_.ranks;
  std::vector<GenerateRequest> requests;
  for (int p = 0; p < end; ++p) {
    const std::vector<TokenId> prompt = task_.SamplePrompt(random);
    for (int g = 0; g < options_.group_size && p >= begin; ++g) {
      GenerateRequest& request = requests.emplace_back();
      request.prompt = prompt;
      request.max_new_tokens = task_.response_tokens();
      request.temperature = options_.temperature;
      request.seed = Mix(batch_seed + static_cast<std::uint64_t>(p * options_.group_size + g + 1));
    }
  }
  return requests;
}

Result<SampledBatch> RolloutSampler::Sample(std::uint64_t number, std::stop_token stop) {
  const std::vector<GenerateRequest> requests = RequestsOf(number);
  ASSIGN_OR_RETURN(
      const std::vector<Rollout> rollouts,
      client_.GenerateBatch(requests, Deadline::After(Clock::Real(), kBatchTimeout), std::move(stop),
                            [this](std::size_t, const Rollout& piece) { tokens_received_ += piece.tokens.size(); }));
  SampledBatch batch;
  batch.share = static_cast<double>(requests.size()) / static_cast<double>(options_.prompt_count * options_.group_size);
  batch.group_size = options_.group_size;
  batch.prompt_tokens = task_.prompt_tokens();
  batch.response_tokens = task_.response_tokens();
  for (std::size_t i = 0; i < rollouts.size(); ++i) {
    RETURN_IF_ERROR(AddRow(task_, requests[i].prompt, rollouts[i], batch));
  }
  return batch;
}

}  // namespace bascule::rl_loop
