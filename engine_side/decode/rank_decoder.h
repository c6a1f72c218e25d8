// The part of one engine rank in a forward pass. The ranks share the activations that every one of them needs; a pass
// is a row of phases, and all ranks have done one before any begins the next:
//
//   PrepareAttention    own rows: the residual is completed by the products of the other ranks, normalised and packed
//   Attend              own heads: qkv (column-parallel), keys and values into the rank's own cache, attention, and the
//                       product with the rank's input columns of o_proj
//   PrepareFeedForward  own rows, as above
//   FeedForward         own elements: gate and up (column-parallel), the product with the rank's input columns of
//                       down_proj
//
// Products are added in the order of ranks, after the residual; the first rank adds its own to the residual itself.
// Embedding and head are cut by vocabulary rows: a token's row comes from the rank that holds it, each rank computes
// the logits of its rows, and nobody those of padding.
//
// Thread-safety: one phase of a rank at a time, on any thread; different ranks at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine_side/decode/decoder.h"
#include "engine_side/decode/float_buffer.h"
#include "engine_side/decode/kv_cache.h"
#include "engine_side/decode/rank_shape.h"
#include "engine_side/decode/rank_weights.h"
#include "engine_side/decode/step.h"
#include "engine_side/decode/step_weights.h"
#include "engine_side/decode/step_workers.h"
#include "kernels/add.h"
#include "kernels/fast_gemm.h"
#include "kernels/sample.h"
#include "kernels/weight_view.h"
#include "model/engine_layout.h"
#include "model/model_config.h"

namespace bascule {

// What all ranks read and each writes in part: a row a token.
struct SharedActivations {
  // ResourceExhausted "float_memory"
  static Result<SharedActivations> Allocate(const DecoderOptions& options);

  std::span<const float> Logits(std::int64_t i) const {
    return {logits.data() + i * vocabulary, static_cast<std::size_t>(vocabulary)};
  }

  std::int64_t vocabulary = 0;  // without padding
  // With room for RowsComputed(max_rows), and of logits for RowsComputed(max_logits).
  FloatBuffer residual;               // also the product of the first rank
  std::vector<FloatBuffer> products;  // of the other ranks: products[r] of rank r, the first is empty
  FloatBuffer normed, packed;
  FloatBuffer cosines, sines;
  FloatBuffer logits;
};

class RankDecoder {
 public:
  using Rows = std::span<const StepRow>;

  // All references outlive it.
  //
  // ResourceExhausted "float_memory"
  static Result<std::unique_ptr<RankDecoder>> Create(const DecoderOptions& options, int rank, SharedActivations& shared,
                                                     KvCache& cache);

  // The first phase: finds this rank's weights, embeds the tokens that it holds.
  void Begin(Rows rows, const StepWeights& weights);
  void PrepareAttention(std::int64_t layer, Rows rows);
  void Attend(std::int64_t layer, Rows rows);
  void PrepareFeedForward(std::int64_t layer, Rows rows);
  void FeedForward(std::int64_t layer, Rows rows);
  void PrepareLogits(Rows rows);
  void Logits(Rows rows);

  // This rank's share of `wishes`; its tokens go where they belong in `tokens`.
  void Sample(std::span<const SampleWish> wishes, std::span<std::optional<SampledToken>> tokens);

 private:
  struct Range {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
  };
  RankDecoder(const DecoderOptions& options, int rank, SharedActivations& shared, KvCache& cache);
  Status Allocate();

  // This rank's share of `count` rows that any rank can do.
  Range Own(std::int64_t count) const { return {count * rank_ / shape_.ranks, count * (rank_ + 1) / shape_.ranks}; }
  float* Residual(std::int64_t row) { return shared_.residual.data() + row * config_.hidden; }

  LayerWeights& Layer(std::int64_t layer) { return weights_.layers[static_cast<std::size_t>(layer)]; }

  void RotateAndStore(std::int64_t layer, Rows rows);
  void RotateAndStoreRow(std::int64_t layer, const StepRow& at, std::int64_t row);
  void AttendToCache(std::int64_t layer, Rows rows);

  // Whether `rows` rows are multiplied with `w` by the library's product. What they are packed for is the same product.
  bool Fast(std::int64_t rows, WeightView w) const {
    return fast_ != nullptr && rows >= fast_->least_rows() && w.type == WeightType::kBf16;
  }
  // `count` rows of `x`, the first of them to row `row` of `packed`.
  static void Pack(bool fast, const float* x, std::int64_t count, std::int64_t k, std::int64_t x_stride, float* packed,
                   std::int64_t row);
  // Normalises the residual of own rows and packs them for the product that every rank does next, with `w`.
  void NormAndPackOwn(std::int64_t rows, WeightView norm, WeightView w);
  void NormAndPack(bool fast, std::int64_t row, std::int64_t packed_row, WeightView norm);
  // The product with input columns that this rank holds: a summand of the residual.
  void MultiplyIntoResidual(WeightView w, std::int64_t rows, std::int64_t k);
  // Completes the residual of own rows. `bias` is the same on every rank and is added once.
  void AddProductsToOwn(std::int64_t rows, WeightView bias);
  static void AddBias(WeightView bias, std::int64_t size, float* y) {
    if (bias.data != nullptr) AddOnHost(bias, size, y);
  }
  // y[rows][outputs] from packed rows of `k` elements. `packed` and `y` have memory for RowsComputed(rows).
  void Multiply(const float* packed, WeightView w, std::int64_t rows, std::int64_t k, std::int64_t outputs, float* y,
                std::int64_t y_stride, bool accumulate);

  const DecoderOptions& options_;
  const ModelConfig& config_;
  const RankShape shape_;
  const std::int64_t max_rows_, max_logits_;
  const int rank_;
  const std::vector<double> rope_frequencies_;
  FastGemm* const fast_;  // may be null
  SharedActivations& shared_;
  KvCache& cache_;
  StepWorkers workers_;

  RankWeights weights_;  // anew in each step

  // Activations of this rank, a row a token.
  FloatBuffer qkv_, attended_, gate_up_, packed_;
  FloatBuffer scores_, sampling_;  // a part a thread
};

}  // namespace bascule
