// One forward pass of the model over the token rows of one step, whatever requests they belong to, on every
// tensor-parallel engine rank of the replica at once.
//
// Numerics: an output depends on the request's tokens, the weights and the number of ranks only, to the bit; kernels/
// fixes every order, and products that are sums over ranks are added in the order of ranks. Another number of ranks
// differs by rounding alone.
//
// Thread-safety: confined to the scheduler thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine_side/decode/kv_cache.h"
#include "engine_side/decode/rank_decoder.h"
#include "engine_side/decode/step.h"
#include "engine_side/decode/step_weights.h"
#include "kernels/sample.h"

namespace bascule {

class Decoder {
 public:
  // `cache` has the shape of options.shape and outlives the decoder.
  //
  // ResourceExhausted "float_memory"
  static Result<std::unique_ptr<Decoder>> Create(DecoderOptions options, KvCache& cache);

  // Runs `rows` through the model and stores their keys and values.
  void Forward(std::span<const StepRow> rows, const StepWeights& weights);
  // After Forward: logits of its i-th row that wanted them. The vocabulary without padding.
  std::span<const float> Logits(std::int64_t i) const { return shared_.Logits(i); }
  // Draws from the first wishes.size() rows of logits, in order. No value: the logits are not finite.
  std::vector<std::optional<SampledToken>> Sample(std::span<const SampleWish> wishes);

 private:
  explicit Decoder(DecoderOptions options);

  // Runs a phase on every rank; it takes about `nanoseconds` on one core, all ranks together.
  template <typename Phase>
  void OnEveryRank(double nanoseconds, const Phase& phase);

  const DecoderOptions options_;
  StepWorkers threads_;
  SharedActivations shared_;
  std::vector<std::unique_ptr<RankDecoder>> ranks_;
};

}  // namespace bascule
