// The loop: learn from rollouts that are a version or two behind, publish the next version while the engine decodes,
// never wait for it.
//
//   trainer   learn(batch s) | step | publish v(s) | learn(batch s+1)    | step | publish v(s+1) | ...
//   engine    decode batch s+1              | flip | decode batch s+2          | flip | ...
//
// Thread-safety: thread-safe (a function).
#pragma once

#include <functional>
#include <stop_token>

#include "base/status.h"
#include "examples/03_rl_loop/rollouts.h"
#include "examples/03_rl_loop/run_record.h"
#include "examples/03_rl_loop/trainer.h"
#include "examples/03_rl_loop/version_publisher.h"

namespace bascule::rl_loop {

struct LoopParts {
  Trainer& trainer;
  RolloutSampler& sampler;
  VersionPublisher* publisher;  // null: the engine keeps version 0
};

// Step s learns from batch s while the engine decodes batch s + 1, and makes version s. `on_step` sees each step once
// its version is live.
//
// DataLoss "engine_disagrees"  the first batch, of which every token is of version 0, has other probabilities in the
//                              trainer than in the engine: their models differ
// Cancelled "interrupted"; as RolloutSampler::Request, VersionPublisher::Publish
Result<RunRecord> RunTrainingLoop(const LoopParts& parts, int step_count,
                                  const std::function<void(const StepRecord&)>& on_step, const std::stop_token& stop);

}  // namespace bascule::rl_loop
