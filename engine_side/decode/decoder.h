// One forward pass of the model over the token rows of one step, whatever requests they belong to.
//
// Numerics: an output depends on the request's tokens and the weights only, to the bit; kernels/ fixes every order.
//
// Thread-safety: confined to the scheduler thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine_side/decode/float_buffer.h"
#include "engine_side/decode/kv_cache.h"
#include "engine_side/decode/step_weights.h"
#include "engine_side/decode/step_workers.h"
#include "kernels/sample.h"
#include "kernels/weight_view.h"
#include "model/engine_layout.h"
#include "model/model_config.h"

namespace bascule {

// One token that goes through the model. Rows of one request are in rising, gapless order of position, and everything
// before its first row is in the cache.
struct StepRow {
  std::int32_t token = 0;
  std::int64_t position = 0;
  const std::int32_t* pages = nullptr;  // of its request
  bool wants_logits = false;
};

// How to draw a token from a row of logits.
struct SampleWish {
  float temperature = 0;
  std::uint64_t seed = 0;
  std::uint64_t position = 0;  // of the token that is drawn
};

struct DecoderOptions {
  ModelConfig config;
  EngineTensors tensors;
  WeightType weight_type = WeightType::kBf16;
  int threads = 1;
  std::int64_t max_rows = 0;    // of one step
  std::int64_t max_logits = 0;  // rows of one step that want logits
};

class Decoder {
 public:
  // ResourceExhausted "float_memory". `cache` outlives the decoder.
  static Result<std::unique_ptr<Decoder>> Create(DecoderOptions options, KvCache& cache);

  // Runs `rows` through the model and stores their keys and values.
  void Forward(std::span<const StepRow> rows, const StepWeights& weights);
  // After Forward: logits of its i-th row that wanted them. The vocabulary without padding.
  std::span<const float> Logits(std::int64_t i) const;
  // Draws from the first wishes.size() rows of logits, in order. No value: the logits are not finite.
  std::vector<std::optional<SampledToken>> Sample(std::span<const SampleWish> wishes);

 private:
  struct LayerWeights {
    WeightView input_norm, qkv, q_norm, k_norm, out, post_attention_norm, gate_up, down;
  };
  Decoder(DecoderOptions options, KvCache& cache);
  Status Allocate();

  void Resolve(const StepWeights& weights);
  void Embed(std::span<const StepRow> rows);
  void AttentionBlock(std::int64_t layer, std::span<const StepRow> rows);
  void RotateAndStore(std::int64_t layer, std::span<const StepRow> rows, std::int64_t begin, std::int64_t end);
  void Attend(std::int64_t layer, std::span<const StepRow> rows);
  void FeedForwardBlock(const LayerWeights& layer, std::int64_t rows);
  void Head(std::span<const StepRow> rows);
  void NormAndPack(const float* x, std::int64_t rows, WeightView weight);
  void Multiply(WeightView w, std::int64_t rows, std::int64_t k, std::int64_t outputs, float* y, bool accumulate);

  const ModelConfig config_;
  const EngineTensors tensors_;
  const WeightType weight_type_;
  const std::int64_t max_rows_, max_logits_;
  const std::int64_t query_size_, kv_size_, qkv_size_;  // floats of a row
  const std::vector<double> rope_frequencies_;
  KvCache& cache_;
  StepWorkers workers_;

  // Resolved anew in each step.
  std::vector<LayerWeights> layers_;
  WeightView embedding_, final_norm_, head_;

  // Activations, a row a token.
  FloatBuffer hidden_, normed_, packed_, qkv_, attended_, gate_up_, logits_;
  FloatBuffer cosines_, sines_;
  FloatBuffer scores_;  // a part a thread
};

}  // namespace bascule
