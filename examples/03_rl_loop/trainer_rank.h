// One trainer rank: the fp32 masters and the optimizer state of its share of every parameter.
//
// As in fully sharded data parallelism no rank holds a whole parameter: rank r of n holds the r-th of n nearly equal
// runs of rows. GatherTensors puts the rows of all ranks together for a forward pass; the backward pass through it
// leaves on each rank the gradients of the rows that it holds.
//
// Thread-safety: thread-compatible.
#pragma once

#include <torch/optim/adamw.h>

#include <cstdint>
#include <memory>
#include <span>

#include "policy.h"

namespace bascule::rl_loop {

// AdamW with a linear warm-up and a cosine decay.
struct OptimizerOptions {
  double learning_rate = 6e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double weight_decay = 0.0;
  double max_grad_norm = 1.0;
  int warmup_steps = 10;
  int total_steps = 120;
  double final_learning_rate_share = 0.1;
};

// A run of rows (indices of dimension 0).
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

RowRange RowsOfRank(std::int64_t row_count, int rank, int rank_count);

class TrainerRank {
 public:
  // Copies this rank's rows out of `full`.
  TrainerRank(const TensorMap& full, int rank, int rank_count, const OptimizerOptions& options);

  // The fp32 masters of this rank's rows, under the names of the whole parameters. Contiguous; they change in place.
  const TensorMap& shards() const { return shards_; }

  // Sum of the squares of all gradients on this rank.
  double GradSquareSum() const;
  void ScaleGrads(double factor);
  // One AdamW step on the masters; the gradients are gone afterwards.
  void ApplyGrads(double learning_rate);

 private:
  TensorMap shards_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

// Whole parameters, connected to the shards for the backward pass.
TensorMap GatherTensors(std::span<const TrainerRank> ranks);

// The rate of step `step`, which counts from 0.
double LearningRate(const OptimizerOptions& options, int step);

// One optimizer step on every rank, clipped by one gradient norm over all of them. Returns that norm before clipping.
double OptimizerStep(std::span<TrainerRank> ranks, const OptimizerOptions& options, int step);

}  // namespace bascule::rl_loop
