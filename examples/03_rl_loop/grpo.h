// Group-relative policy optimisation: each response is judged against the other responses to the same prompt.
//
// The judgement is made token by token. The reward of one position says nothing about another, so a token's advantage
// is its own reward against that of the group at the same position; crediting every token with the sum of the whole
// response learns the same, several times slower.
//
// Responses come from an engine that may be a version or more behind. Each token therefore carries the log-probability
// under the weights that chose it, and the loss weighs the token by the ratio of the policy's probability to that one,
// clipped so that a single step cannot move it far.
//
// Thread-safety: thread-compatible.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace bascule::rl_loop {

struct GrpoOptions {
  double clip_low = 0.2;   // a ratio below 1 - clip_low or above 1 + clip_high earns nothing more
  double clip_high = 0.3;  // wider, so that a rare token that turns out well can grow
};

// Prompts of one length and responses of one length; the members of a group lie in adjacent rows.
struct RolloutBatch {
  std::int64_t group_size = 0;
  torch::Tensor token_ids;      // int64 [rows, prompt + response]
  torch::Tensor behavior_logp;  // float [rows, response], natural logarithm, from the engine
  torch::Tensor token_rewards;  // float [rows, response]
};

struct GrpoLoss {
  torch::Tensor loss;            // scalar, with gradients
  double ratio_deviation = 0.0;  // mean of |ratio - 1|: about 0.001 from bf16 alone, more with staleness
  double clipped_share = 0.0;
  double entropy = 0.0;  // nats per token
};

// (reward - mean) / standard deviation, both over the group at the same position; 0 where all rewards are equal.
torch::Tensor GroupAdvantages(const torch::Tensor& token_rewards, std::int64_t group_size);

// `logits` is [rows, prompt + response, vocab], from the policy that is trained.
GrpoLoss ComputeGrpoLoss(const RolloutBatch& batch, const torch::Tensor& logits, const GrpoOptions& options);

}  // namespace bascule::rl_loop
