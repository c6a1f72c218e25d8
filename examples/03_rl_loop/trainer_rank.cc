#include "examples/03_rl_loop/trainer_rank.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "trainer_side/layouts/flat_parameter_layout.h"

namespace bascule::rl_loop {
namespace {

std::vector<TensorSpec> SpecsOf(const TensorMap& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) {
    specs.push_back({name, DType::kF32, Dims(std::span(tensor.sizes().data(), tensor.sizes().size()))});
  }
  return specs;
}

// This rank's piece of `flat`, of which every rank has one of the same size.
torch::Tensor PieceOf(const torch::Tensor& flat, const Collective& ranks) {
  const std::int64_t size = flat.numel() / ranks.size();
  return flat.narrow(0, ranks.rank() * size, size);
}

// The parameters of a unit in one piece, padded so that it can be cut evenly.
torch::Tensor Flatten(const TensorMap& full, const std::vector<std::string>& names, int ranks) {
  std::vector<torch::Tensor> pieces;
  std::int64_t elements = 0;
  for (const std::string& name : names) {
    pieces.push_back(full.at(name).detach().flatten());
    elements += pieces.back().numel();
  }
  pieces.push_back(torch::zeros({(ranks - elements % ranks) % ranks}));
  return torch::cat(pieces);
}

}  // namespace

double LearningRate(const OptimizerOptions& options, int step) {
  const double warmup = std::min(1.0, static_cast<double>(step + 1) / options.warmup_steps);
  const double progress = static_cast<double>(step) / options.total_steps;
  const double low = options.final_learning_rate_share;
  return options.learning_rate * warmup * (low + (1.0 - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress)));
}

TrainerRank::TrainerRank(const TensorMap& full, Collective& ranks, const OptimizerOptions& options)
    : ranks_(ranks), options_(options) {
  const std::vector<TensorSpec> specs = SpecsOf(full);
  std::map<std::string, Dims> shapes;
  for (const TensorSpec& spec : specs) shapes.emplace(spec.name, spec.shape);
  std::vector<torch::Tensor> shards;
  for (const FlatUnit& flat : UnitPerLayer(specs)) {
    Unit& unit = units_.emplace_back();
    unit.placement = {.unit = flat.name, .parts = {}, .ranks = ranks.size(), .rank = ranks.rank()};
    for (const std::string& name : flat.tensors) unit.placement.parts.push_back({name, shapes.at(name)});
    unit.shard = PieceOf(Flatten(full, flat.tensors, ranks.size()), ranks).clone().set_requires_grad(true);
    shards.push_back(unit.shard);
  }
  optimizer_ = std::make_unique<torch::optim::AdamW>(shards, torch::optim::AdamWOptions(options.learning_rate)
                                                                 .betas({options.beta1, options.beta2})
                                                                 .weight_decay(options.weight_decay));
}

Status TrainerRank::Describe(TorchTensors& tensors) const {
  for (const Unit& unit : units_) RETURN_IF_ERROR(tensors.AddFlat(unit.placement, unit.shard));
  return OkStatus();
}

Result<TensorMap> TrainerRank::Gather() {
  TensorMap parameters;
  for (Unit& unit : units_) {
    ASSIGN_OR_RETURN(unit.whole, ranks_.Gather(unit.shard.detach()));
    unit.whole.set_requires_grad(true);
    std::int64_t begin = 0;
    for (const FlatPlacement::Part& part : unit.placement.parts) {
      const at::IntArrayRef shape(part.shape.begin(), part.shape.end());
      const std::int64_t elements = Box::Whole(part.shape).Elements();
      parameters.emplace(part.name, unit.whole.narrow(0, begin, elements).view(shape));
      begin += elements;
    }
  }
  return parameters;
}

Status TrainerRank::ReduceGradients() {
  for (Unit& unit : units_) {
    RETURN_IF_ERROR(ranks_.Sum(unit.whole.grad()));
    unit.shard.mutable_grad() = PieceOf(unit.whole.grad(), ranks_).clone();
  }
  return OkStatus();
}

Result<double> TrainerRank::Step(int step) {
  double square_sum = 0.0;
  for (const Unit& unit : units_) square_sum += unit.shard.grad().square().sum().item<double>();
  RETURN_IF_ERROR(ranks_.Sum(std::span(&square_sum, 1)));
  const double norm = std::sqrt(square_sum);
  for (Unit& unit : units_) {
    if (norm > options_.max_grad_norm) unit.shard.mutable_grad().mul_(options_.max_grad_norm / norm);
  }
  for (torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
    group.options().set_lr(LearningRate(options_, step));
  }
  optimizer_->step();
  optimizer_->zero_grad();
  return norm;
}

}  // namespace bascule::rl_loop
