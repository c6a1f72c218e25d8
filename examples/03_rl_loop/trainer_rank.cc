#include "trainer_rank.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

namespace bascule::rl_loop {

RowRange RowsOfRank(std::int64_t row_count, int rank, int rank_count) {
  const std::int64_t begin = row_count * rank / rank_count;
  const std::int64_t end = row_count * (rank + 1) / rank_count;
  return {begin, end - begin};
}

TrainerRank::TrainerRank(const TensorMap& full, int rank, int rank_count, const OptimizerOptions& options) {
  std::vector<torch::Tensor> parameters;
  for (const auto& [name, tensor] : full) {
    const RowRange rows = RowsOfRank(tensor.size(0), rank, rank_count);
    torch::Tensor shard = tensor.detach().narrow(0, rows.begin, rows.count).clone().set_requires_grad(true);
    parameters.push_back(shard);
    shards_.emplace(name, std::move(shard));
  }
  optimizer_ = std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(options.learning_rate)
                                                                     .betas({options.beta1, options.beta2})
                                                                     .weight_decay(options.weight_decay));
}

double TrainerRank::GradSquareSum() const {
  double sum = 0.0;
  for (const auto& [name, shard] : shards_) sum += shard.grad().square().sum().item<double>();
  return sum;
}

void TrainerRank::ScaleGrads(double factor) {
  for (auto& [name, shard] : shards_) shard.mutable_grad().mul_(factor);
}

void TrainerRank::ApplyGrads(double learning_rate) {
  for (torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) group.options().set_lr(learning_rate);
  optimizer_->step();
  optimizer_->zero_grad();
}

TensorMap GatherTensors(std::span<const TrainerRank> ranks) {
  TensorMap full;
  for (const auto& [name, first] : ranks.front().shards()) {
    std::vector<torch::Tensor> pieces;
    for (const TrainerRank& rank : ranks) pieces.push_back(rank.shards().at(name));
    full.emplace(name, torch::cat(pieces, 0));
  }
  return full;
}

double LearningRate(const OptimizerOptions& options, int step) {
  const double warmup = std::min(1.0, static_cast<double>(step + 1) / options.warmup_steps);
  const double progress = static_cast<double>(step) / options.total_steps;
  const double low = options.final_learning_rate_share;
  return options.learning_rate * warmup * (low + (1.0 - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

double OptimizerStep(std::span<TrainerRank> ranks, const OptimizerOptions& options, int step) {
  double square_sum = 0.0;
  for (const TrainerRank& rank : ranks) square_sum += rank.GradSquareSum();
  const double norm = std::sqrt(square_sum);
  for (TrainerRank& rank : ranks) {
    if (norm > options.max_grad_norm) rank.ScaleGrads(options.max_grad_norm / norm);
    rank.ApplyGrads(LearningRate(options, step));
  }
  return norm;
}

}  // namespace bascule::rl_loop
