// The loop: learn from rollouts that are a version or two behind, publish the next version while the engine decodes,
// never wait for it. Every trainer rank runs it, on its share of every batch.
//
//   trainer   learn(batch s) | step | publish v(s) | learn(batch s+1)    | step | publish v(s+1) | ...
//   engine    decode batch s+1              | flip | decode batch s+2          | flip | ...
//
// Thread-safety: thread-safe (a function).
#pragma once

#include <functional>
#include <stop_token>

#include "base/status.h"
#include "examples/03_rl_loop/collective.h"
#include "examples/03_rl_loop/parity_probe.h"
#include "examples/03_rl_loop/rollouts.h"
#include "examples/03_rl_loop/run_record.h"
#include "examples/03_rl_loop/trainer.h"
#include "examples/03_rl_loop/version_publisher.h"

namespace bascule::rl_loop {

struct LoopParts {
  Collective& ranks;
  Trainer& trainer;
  RolloutSampler& sampler;
  const ParityProbe& probe;
  VersionPublisher* publisher;  // null: the engine keeps version 0
};

// Step s learns from batch s while the engine decodes batch s + 1, and makes version s. `on_step` sees each step once
// its version is live, as all
// ranks together saw it.
//
// DataLoss "engine_disagrees"  tokens have other probabilities in the trainer than in the engine under the same
// version:
//                              those of the first batch, all of version 0, or those of a version's probe
// Cancelled "interrupted"; as Collective, RolloutSampler::Request, VersionPublisher::Publish,
// TorchTensors::CheckInPlace
Result<RunRecord> RunTrainingLoop(const LoopParts& parts, int step_count,
                                  const std::function<void(const StepRecord&)>& on_step, const std::stop_token& stop);

}  // namespace bascule::rl_loop
