// A decoder on processors: the ranks are threads, or take turns, and their key/value state is a KvCache.
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
#include "engine_side/decode/decoder.h"
#include "engine_side/decode/kv_cache.h"
#include "engine_side/decode/rank_decoder.h"
#include "engine_side/decode/step.h"
#include "engine_side/decode/step_weights.h"
#include "kernels/sample.h"

namespace bascule {

class HostDecoder final : public Decoder {
 public:
  // `cache` has the shape of options.shape and outlives the decoder.
  //
  // ResourceExhausted "float_memory"
  static Result<std::unique_ptr<HostDecoder>> Create(DecoderOptions options, KvCache& cache);

  Status CopyPages(std::span<const PageCopy> copies) override;
  Result<Draws> Step(std::span<const StepRow> rows, std::span<const SampleWish> wishes,
                     std::shared_ptr<StepWeights> weights) override;

  // The two halves of a step. Runs `rows` through the model and stores their keys and values.
  void Forward(std::span<const StepRow> rows, const StepWeights& weights);
  // After Forward: logits of its i-th row that wanted them. The vocabulary without padding.
  std::span<const float> Logits(std::int64_t i) const { return shared_.Logits(i); }
  // Draws from the first wishes.size() rows of logits, in order.
  Draws Sample(std::span<const SampleWish> wishes);

 private:
  HostDecoder(DecoderOptions options, KvCache& cache);

  // Runs a phase on every rank; it takes about `nanoseconds` on one core, all ranks together.
  template <typename Phase>
  void OnEveryRank(double nanoseconds, const Phase& phase);

  const DecoderOptions options_;
  KvCache& cache_;
  StepWorkers threads_;
  SharedActivations shared_;
  std::vector<std::unique_ptr<RankDecoder>> ranks_;
};

}  // namespace bascule
