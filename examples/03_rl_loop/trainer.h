// The trainer: a policy in fp32, spread over trainer ranks that each hold a share of every parameter. Everything that
// needs torch is behind this header.
//
// Thread-safety: thread-compatible; a publish may read the masters while Learn runs, which only reads them too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "examples/03_rl_loop/rollouts.h"
#include "trainer_side/tensor_source.h"

namespace bascule::rl_loop {

struct TrainerOptions {
  std::uint64_t seed = 1;  // of the initial weights
  int rank_count = 2;
  int total_steps = 120;  // over which the learning rate decays
};

struct LearnReport {
  double ratio_deviation = 0;  // mean |ratio - 1| of trainer's to engine's probability of each token
  double clipped_share = 0;
  double entropy = 0;  // nats per token
};

class Trainer {
 public:
  explicit Trainer(const TrainerOptions& options);
  ~Trainer();

  std::int64_t parameter_count() const;
  // A Hugging Face checkpoint of the weights as they are: config.json, and model.safetensors in bf16, rounded by torch.
  //
  // Unavailable "cannot_write"; as WriteSafetensors
  Status WriteCheckpoint(const std::string& directory) const;
  // Each trainer rank's shards, by address: describes the masters once for all versions. The trainer outlives it.
  Result<TensorSource> Source() const;

  // Gradients of one batch. The masters stay as they are.
  LearnReport Learn(const SampledBatch& batch);
  // Applies them: the only moment at which masters change.
  void Step();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace bascule::rl_loop
