#include "grpo.h"

#include <torch/torch.h>

namespace bascule::rl_loop {
namespace {

constexpr double kStdFloor = 1e-4;

}  // namespace

torch::Tensor GroupAdvantages(const torch::Tensor& token_rewards, std::int64_t group_size) {
  const torch::Tensor grouped = token_rewards.reshape({-1, group_size, token_rewards.size(1)});
  const torch::Tensor centered = grouped - grouped.mean(1, /*keepdim=*/true);
  const torch::Tensor deviation = grouped.std(1, /*unbiased=*/false, /*keepdim=*/true);
  return (centered / (deviation + kStdFloor)).reshape_as(token_rewards);
}

GrpoLoss ComputeGrpoLoss(const RolloutBatch& batch, const torch::Tensor& logits, const GrpoOptions& options) {
  const std::int64_t length = batch.token_rewards.size(1);
  const std::int64_t prompt = batch.token_ids.size(1) - length;
  // The logits after a token predict the next one.
  const torch::Tensor logp = logits.narrow(1, prompt - 1, length).log_softmax(-1);
  const torch::Tensor response = batch.token_ids.narrow(1, prompt, length);
  const torch::Tensor chosen = logp.gather(-1, response.unsqueeze(-1)).squeeze(-1);
  const torch::Tensor ratio = (chosen - batch.behavior_logp).exp();
  const torch::Tensor clipped = ratio.clamp(1.0 - options.clip_low, 1.0 + options.clip_high);
  const torch::Tensor advantages = GroupAdvantages(batch.token_rewards, batch.group_size);
  const torch::Tensor free_gain = ratio * advantages;
  const torch::Tensor clipped_gain = clipped * advantages;
  const torch::Tensor entropy = -(logp.exp() * logp).sum(-1).mean();

  GrpoLoss result;
  result.loss = -torch::min(free_gain, clipped_gain).mean();
  result.ratio_deviation = (ratio.detach() - 1.0).abs().mean().item<double>();
  result.clipped_share = (clipped_gain < free_gain).to(torch::kFloat32).mean().item<double>();
  result.entropy = entropy.item<double>();
  return result;
}

}  // namespace bascule::rl_loop
