// The part of one engine rank in a forward pass. The ranks run it side by side and share the activations that every one
// of them needs:
//
//   own rows:  residual += products of the other ranks, in the order of ranks; normalised and packed     then all meet
//   own heads: qkv (column-parallel), keys and values into the rank's own cache, attention, and its product with
//              the rank's input columns of o_proj                                                         then all meet
//   own rows:  as above                                                                                   then all meet
//   own share of the feed-forward elements: gate and up (column-parallel), product with input columns of down_proj
//                                                                                                         then all meet
//
// The first rank adds its product to the residual itself. Embedding and head are cut by vocabulary rows: a token's row
// comes from the rank that holds it, each rank computes the logits of its rows, and nobody those of padding. With one
// rank there is nothing to meet for and nothing to add.
//
// Thread-safety: Create and destruction belong to the decoder; Forward and Sample to the rank's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine_side/decode/float_buffer.h"
#include "engine_side/decode/kv_cache.h"
#include "engine_side/decode/rank_shape.h"
#include "engine_side/decode/rank_threads.h"
#include "engine_side/decode/step.h"
#include "engine_side/decode/step_weights.h"
#include "engine_side/decode/step_workers.h"
#include "kernels/sample.h"
#include "kernels/weight_view.h"
#include "model/engine_layout.h"
#include "model/model_config.h"

namespace bascule {

struct DecoderOptions {
  ModelConfig config;
  EngineTensors tensors;
  RankShape shape;
  WeightType weight_type = WeightType::kBf16;
  int threads = 1;              // of all ranks together; each rank has one at least
  std::int64_t max_rows = 0;    // of one step
  std::int64_t max_logits = 0;  // rows of one step that want logits
};

// What all ranks read and each writes in part: a row a token.
struct SharedActivations {
  // ResourceExhausted "float_memory"
  static Result<SharedActivations> Allocate(const DecoderOptions& options);

  std::span<const float> Logits(std::int64_t i) const {
    return {logits.data() + i * vocabulary, static_cast<std::size_t>(vocabulary)};
  }

  std::int64_t vocabulary = 0;        // without padding
  FloatBuffer residual;               // also the product of the first rank
  std::vector<FloatBuffer> products;  // of the other ranks: products[r] of rank r, the first is empty
  FloatBuffer normed, packed;
  FloatBuffer cosines, sines;
  FloatBuffer logits;
};

class RankDecoder {
 public:
  // All references outlive it.
  //
  // ResourceExhausted "float_memory"
  static Result<std::unique_ptr<RankDecoder>> Create(const DecoderOptions& options, int rank, RankThreads& threads,
                                                     SharedActivations& shared, KvCache& cache);

  void Forward(std::span<const StepRow> rows, const StepWeights& weights);
  // This rank's share of `wishes`; its tokens go where they belong in `tokens`.
  void Sample(std::span<const SampleWish> wishes, std::span<std::optional<SampledToken>> tokens);

 private:
  struct LayerWeights {
    WeightView input_norm, qkv, q_norm, k_norm, out, post_attention_norm, gate_up, down;
  };
  struct Range {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
  };
  RankDecoder(const DecoderOptions& options, int rank, RankThreads& threads, SharedActivations& shared, KvCache& cache);
  Status Allocate();

  // This rank's share of `count` rows that any rank can do.
  Range Own(std::int64_t count) const { return {count * rank_ / shape_.ranks, count * (rank_ + 1) / shape_.ranks}; }
  float* Residual(std::int64_t row) { return shared_.residual.data() + row * config_.hidden; }

  void Resolve(const StepWeights& weights);
  void Embed(std::span<const StepRow> rows);
  void AttentionBlock(std::int64_t layer, std::span<const StepRow> rows);
  void RotateAndStore(std::int64_t layer, std::span<const StepRow> rows);
  void RotateAndStoreRow(std::int64_t layer, const StepRow& at, std::int64_t row);
  void Attend(std::int64_t layer, std::span<const StepRow> rows);
  void FeedForwardBlock(const LayerWeights& layer, std::int64_t rows);
  void Head(std::span<const StepRow> rows);

  // Normalises the residual of own rows and packs them for the product that every rank does next.
  void NormAndPackOwn(std::int64_t rows, WeightView norm);
  void NormAndPack(std::int64_t row, std::int64_t packed_row, WeightView norm);
  // The product with input columns that this rank holds: a summand of the residual.
  void MultiplyIntoResidual(WeightView w, std::int64_t rows, std::int64_t k);
  void AddProductsToOwn(std::int64_t rows);
  // y[rows][outputs] from packed rows of `k` elements.
  void Multiply(const float* packed, WeightView w, std::int64_t rows, std::int64_t k, std::int64_t outputs, float* y,
                std::int64_t y_stride, bool accumulate);

  const ModelConfig& config_;
  const EngineTensors& tensors_;
  const RankShape shape_;
  const WeightType weight_type_;
  const std::int64_t max_rows_, max_logits_;
  const int rank_;
  const std::vector<double> rope_frequencies_;
  RankThreads& threads_;
  SharedActivations& shared_;
  KvCache& cache_;
  StepWorkers workers_;

  // Resolved anew in each step.
  std::vector<LayerWeights> layers_;
  WeightView embedding_, final_norm_, head_;

  // Activations of this rank, a row a token.
  FloatBuffer qkv_, attended_, gate_up_, packed_;
  FloatBuffer scores_, sampling_;  // a part a thread
};

}  // namespace bascule
