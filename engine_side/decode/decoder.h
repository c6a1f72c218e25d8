// One forward pass of the model over the token rows of one step, whatever requests they belong to, on every
// tensor-parallel engine rank of the replica at once, and the draws that follow. The key/value state of all requests is
// the decoder's, in pages that the caller hands out (KvPages).
//
// HostDecoder computes on processors, DeviceDecoder on devices; what each promises about numbers is said there.
//
// Thread-safety: confined to the scheduler thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine_side/decode/kv_state.h"
#include "engine_side/decode/rank_shape.h"
#include "engine_side/decode/step.h"
#include "engine_side/decode/step_weights.h"
#include "kernels/sample.h"
#include "kernels/weight_view.h"
#include "model/engine_layout.h"
#include "model/model_config.h"

namespace bascule {

class FastGemm;

struct DecoderOptions {
  ModelConfig config;
  EngineTensors tensors;
  RankShape shape;
  WeightType weight_type = WeightType::kBf16;
  std::vector<WeightType> weight_types;  // of each tensor of an engine rank; empty: all are `weight_type`
  int threads = 1;                       // of all ranks together
  std::int64_t max_rows = 0;             // of one step
  std::int64_t max_logits = 0;           // rows of one step that want logits
  std::vector<int> cores = {};           // that the threads keep to, if any
  FastGemm* fast = nullptr;              // for products of enough rows with bf16 weights; borrowed, null: none
};

class Decoder {
 public:
  using Draws = std::vector<std::optional<SampledToken>>;  // no value: the logits are not finite
  virtual ~Decoder() = default;

  // In this order, before the rows of the next step. Errors as of Step.
  virtual Status CopyPages(std::span<const PageCopy> copies) = 0;

  // Runs `rows` through the model, stores their keys and values, and draws from those that want logits: wishes[i] is
  // the i-th's of them. Lets go of `weights` when nothing reads them any more.
  //
  // Errors of a device (device/device.h), "device_deadline" among them: what the requests of `rows` have of state is
  // lost. On the host there is none.
  virtual Result<Draws> Step(std::span<const StepRow> rows, std::span<const SampleWish> wishes,
                             std::shared_ptr<StepWeights> weights) = 0;

  // No step comes any more: lets go of weights in any case, also where a device that was given up may still read them.
  virtual void Stop() {}

  // OK, or what keeps every later step from being done.
  virtual Status health() const { return OkStatus(); }
};

}  // namespace bascule
