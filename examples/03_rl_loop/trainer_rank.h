// One trainer rank: the fp32 masters and the optimizer state of its share of every parameter.
//
// As in fully sharded data parallelism no rank holds a whole parameter for long. The parameters of a layer are
// flattened, concatenated, padded and cut evenly by element over the ranks (trainer_side/layouts/
// flat_parameter_layout.h); where a cut falls in a parameter is nobody's concern. Gather puts the pieces of all ranks
// together for a forward pass; ReduceGradients sums what the ranks' backward passes left on the whole and keeps this
// rank's piece. (A sum of everything, then a cut: gloo has no reduce-scatter.)
//
// Thread-safety: thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "examples/03_rl_loop/collective.h"
#include "trainer_side/torch/torch_tensors.h"

#include "examples/03_rl_loop/policy.h"  // torch's headers come after ours: they bring a CHECK of their own

#include <torch/optim/adamw.h>

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

// The rate of step `step`, which counts from 0.
double LearningRate(const OptimizerOptions& options, int step);

class TrainerRank {
 public:
  // Copies this rank's pieces out of `full`. `ranks` is borrowed.
  TrainerRank(const TensorMap& full, Collective& ranks, const OptimizerOptions& options);

  // The flat shards, which change in place. As TorchTensors::AddFlat.
  Status Describe(TorchTensors& tensors) const;

  // As Collective, each of them on all ranks at once:
  // Whole parameters under their names, connected to this rank's for the backward pass. The last ones lose theirs.
  Result<TensorMap> Gather();
  Status ReduceGradients();
  // One AdamW step on the masters, clipped by one gradient norm over all ranks; gives that norm before clipping. The
  // gradients are gone afterwards.
  Result<double> Step(int step);

 private:
  struct Unit {
    FlatPlacement placement;
    torch::Tensor shard;  // fp32 master
    torch::Tensor whole;  // as gathered last, with padding: where gradients arrive
  };

  Collective& ranks_;
  const OptimizerOptions options_;
  std::vector<Unit> units_;
  std::unique_ptr<torch::optim::AdamW> optimizer_;
};

}  // namespace bascule::rl_loop
