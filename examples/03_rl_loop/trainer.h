// The trainer, as far as this rank goes: a share of every parameter in fp32, and of every batch. Everything that needs
// torch is behind this header.
//
// Gather, Learn and Step are made by all ranks at once, and fail as Collective does.
//
// Thread-safety: thread-compatible; a publish may read the masters while Learn runs, which only reads them too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "examples/03_rl_loop/collective.h"
#include "examples/03_rl_loop/rollouts.h"
#include "trainer_side/tensor_source.h"

namespace bascule::rl_loop {

struct TrainerOptions {
  std::uint64_t seed = 1;  // of the initial weights
  int total_steps = 120;   // over which the learning rate decays
};

struct LearnReport {
  double ratio_deviation = 0;  // mean |ratio - 1| of trainer's to engine's probability of each token
  double clipped_share = 0;
  double entropy = 0;  // nats per token
};

class Trainer {
 public:
  // `ranks` is borrowed; nothing is said to them yet.
  Trainer(const TrainerOptions& options, Collective& ranks);
  ~Trainer();

  std::int64_t parameter_count() const;
  // A Hugging Face checkpoint of the initial weights: config.json, and model.safetensors in bf16, rounded by torch.
  //
  // Unavailable "cannot_write"; as WriteSafetensors
  Status WriteCheckpoint(const std::string& directory) const;
  // This rank's shards, by address: describes the masters once for all versions. It keeps their memory.
  Result<TensorSource> Source();
  // As TorchTensors.
  Status CheckInPlace() const;

  // Puts the parameters of all ranks together, for what follows.
  Status Gather();
  // Log-probabilities of every token of the vocabulary as the next one, one prompt behind the other, under the weights
  // that Gather has put together, as an engine gets them: in bf16.
  std::vector<float> NextTokenLogprobs(const std::vector<std::vector<TokenId>>& prompts) const;
  // Gradients of this rank's part of a batch, summed over all ranks. The masters stay as they are.
  Result<LearnReport> Learn(const SampledBatch& batch);
  // Applies them: the only moment at which masters change.
  Status Step();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bascule::rl_loop
