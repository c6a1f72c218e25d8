#include "engine_side/decode/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/gemm.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

namespace bascule {
namespace {

// Rough costs on one core, for choosing whether to share work; they have no effect on results.
constexpr double kMultiplyAddNs = 1.0 / 40;
constexpr double kWeightByteNs = 1.0 / 12;
constexpr double kElementNs = 0.5;

constexpr std::int64_t kRangeWeightBytes = 64 << 10;  // of weights that one claim reads
constexpr std::int64_t kRangeOutputsMultiple = 12;    // whole register tiles

}  // namespace

Result<std::unique_ptr<Decoder>> Decoder::Create(DecoderOptions options, KvCache& cache) {
  std::unique_ptr<Decoder> decoder(new Decoder(std::move(options), cache));
  RETURN_IF_ERROR(decoder->Allocate());
  return decoder;
}

Decoder::Decoder(DecoderOptions options, KvCache& cache)
    : config_(std::move(options.config)),
      tensors_(std::move(options.tensors)),
      weight_type_(options.weight_type),
      max_rows_(options.max_rows),
      max_logits_(options.max_logits),
      query_size_(config_.query_heads * config_.head_size),
      kv_size_(config_.kv_heads * config_.head_size),
      qkv_size_(query_size_ + 2 * kv_size_),
      rope_frequencies_(RopeFrequencies(config_.rope_theta, config_.head_size)),
      cache_(cache),
      workers_(options.threads),
      layers_(static_cast<std::size_t>(config_.layers)) {}

Status Decoder::Allocate() {
  const std::int64_t widest = std::max({config_.hidden, query_size_, config_.ffn});
  const std::int64_t half = config_.head_size / 2;
  ASSIGN_OR_RETURN(hidden_, FloatBuffer::Allocate(max_rows_ * config_.hidden));
  ASSIGN_OR_RETURN(normed_, FloatBuffer::Allocate(max_rows_ * config_.hidden));
  ASSIGN_OR_RETURN(packed_, FloatBuffer::Allocate(max_rows_ * PackedWidth(widest)));
  ASSIGN_OR_RETURN(qkv_, FloatBuffer::Allocate(max_rows_ * qkv_size_));
  ASSIGN_OR_RETURN(attended_, FloatBuffer::Allocate(max_rows_ * query_size_));
  ASSIGN_OR_RETURN(gate_up_, FloatBuffer::Allocate(max_rows_ * 2 * config_.ffn));
  ASSIGN_OR_RETURN(logits_, FloatBuffer::Allocate(2 * max_logits_ * config_.vocabulary));  // second half: sampling
  ASSIGN_OR_RETURN(cosines_, FloatBuffer::Allocate(max_rows_ * half));
  ASSIGN_OR_RETURN(sines_, FloatBuffer::Allocate(max_rows_ * half));
  ASSIGN_OR_RETURN(scores_, FloatBuffer::Allocate(workers_.threads() * AttentionScratch(config_.max_positions)));
  return OkStatus();
}

void Decoder::Forward(std::span<const StepRow> rows, const StepWeights& weights) {
  CHECK(static_cast<std::int64_t>(rows.size()) <= max_rows_);
  Resolve(weights);
  Embed(rows);
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    AttentionBlock(layer, rows);
    FeedForwardBlock(layers_[static_cast<std::size_t>(layer)], static_cast<std::int64_t>(rows.size()));
  }
  Head(rows);
}

void Decoder::Resolve(const StepWeights& weights) {
  const auto view = [&](int tensor, std::int64_t elements) {
    if (tensor < 0) return WeightView{};
    const WeightView found{weights.Tensor(tensor).data(), weight_type_};
    CHECK(static_cast<std::int64_t>(weights.Tensor(tensor).size()) >= elements * found.item_bytes());
    return found;
  };
  const std::int64_t hidden = config_.hidden;
  embedding_ = view(tensors_.embedding, config_.vocabulary * hidden);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const EngineLayerTensors& layer = tensors_.layers[i];
    layers_[i] = {.input_norm = view(layer.input_norm, hidden),
                  .qkv = view(layer.qkv, qkv_size_ * hidden),
                  .q_norm = view(layer.q_norm, config_.head_size),
                  .k_norm = view(layer.k_norm, config_.head_size),
                  .out = view(layer.out, hidden * query_size_),
                  .post_attention_norm = view(layer.post_attention_norm, hidden),
                  .gate_up = view(layer.gate_up, 2 * config_.ffn * hidden),
                  .down = view(layer.down, hidden * config_.ffn)};
  }
  final_norm_ = view(tensors_.final_norm, hidden);
  head_ = view(tensors_.head, config_.vocabulary * hidden);
}

void Decoder::Embed(std::span<const StepRow> rows) {
  const std::int64_t half = config_.head_size / 2;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto row = static_cast<std::int64_t>(r);
    WidenOnHost(embedding_, rows[r].token * config_.hidden, config_.hidden, hidden_.data() + row * config_.hidden);
    RopeAngles(rope_frequencies_, rows[r].position, {cosines_.data() + row * half, rope_frequencies_.size()},
               {sines_.data() + row * half, rope_frequencies_.size()});
  }
}

void Decoder::AttentionBlock(std::int64_t layer, std::span<const StepRow> rows) {
  const LayerWeights& w = layers_[static_cast<std::size_t>(layer)];
  const auto count = static_cast<std::int64_t>(rows.size());
  NormAndPack(hidden_.data(), count, w.input_norm);
  Multiply(w.qkv, count, config_.hidden, qkv_size_, qkv_.data(), /*accumulate=*/false);
  const double row_ns = static_cast<double>(count * qkv_size_) * kElementNs;
  workers_.ForRanges(count, 1, row_ns,
                     [&](std::int64_t begin, std::int64_t end, int) { RotateAndStore(layer, rows, begin, end); });
  Attend(layer, rows);
  workers_.ForRanges(count, 8, row_ns, [&](std::int64_t begin, std::int64_t end, int) {
    PackRowsOnHost(attended_.data() + begin * query_size_, end - begin, query_size_, query_size_,
                   packed_.data() + begin * PackedWidth(query_size_));
  });
  Multiply(w.out, count, query_size_, config_.hidden, hidden_.data(), /*accumulate=*/true);
}

// The keys and values of all rows are stored before any row attends: rows of one request attend to each other.
void Decoder::RotateAndStore(std::int64_t layer, std::span<const StepRow> rows, std::int64_t begin, std::int64_t end) {
  const LayerWeights& w = layers_[static_cast<std::size_t>(layer)];
  const std::int64_t size = config_.head_size;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::span<const float> cosines(cosines_.data() + row * (size / 2), rope_frequencies_.size());
    const std::span<const float> sines(sines_.data() + row * (size / 2), rope_frequencies_.size());
    float* query = qkv_.data() + row * qkv_size_;
    float* key = query + query_size_;
    const float* value = key + kv_size_;
    for (std::int64_t head = 0; head < config_.query_heads + config_.kv_heads; ++head) {
      float* at = query + head * size;  // the key heads follow the query heads
      const WeightView norm = head < config_.query_heads ? w.q_norm : w.k_norm;
      if (config_.qk_norm) RmsNormOnHost(at, size, norm, eps, at);
      RopeOnHost(at, cosines, sines);
    }
    const StepRow& at = rows[static_cast<std::size_t>(row)];
    for (std::int64_t head = 0; head < config_.kv_heads; ++head) {
      StoreKvOnHost(cache_.Head(layer, head, at.pages), at.position, key + head * size, value + head * size);
    }
  }
}

void Decoder::Attend(std::int64_t layer, std::span<const StepRow> rows) {
  const std::int64_t size = config_.head_size;
  const std::int64_t group = config_.query_heads / config_.kv_heads;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  double multiply_adds = 0;
  for (const StepRow& row : rows) multiply_adds += static_cast<double>(2 * (row.position + 1) * query_size_);
  const std::int64_t items = static_cast<std::int64_t>(rows.size()) * config_.kv_heads;
  workers_.ForRanges(items, 1, multiply_adds * kMultiplyAddNs, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* scratch = scores_.data() + thread * AttentionScratch(config_.max_positions);
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t row = item / config_.kv_heads, kv_head = item % config_.kv_heads;
      const StepRow& at = rows[static_cast<std::size_t>(row)];
      AttentionOnHost({.cache = cache_.Head(layer, kv_head, at.pages),
                       .positions = at.position + 1,
                       .heads = group,
                       .query = qkv_.data() + row * qkv_size_ + kv_head * group * size,
                       .scale = scale,
                       .out = attended_.data() + row * query_size_ + kv_head * group * size,
                       .scratch = scratch});
    }
  });
}

void Decoder::FeedForwardBlock(const LayerWeights& layer, std::int64_t rows) {
  const std::int64_t ffn = config_.ffn;
  NormAndPack(hidden_.data(), rows, layer.post_attention_norm);
  Multiply(layer.gate_up, rows, config_.hidden, 2 * ffn, gate_up_.data(), /*accumulate=*/false);
  const double elements_ns = static_cast<double>(rows * ffn) * kElementNs;
  workers_.ForRanges(rows, 1, elements_ns, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* gate = gate_up_.data() + row * 2 * ffn;
      SwigluOnHost(gate, gate + ffn, ffn, gate);
      PackRowsOnHost(gate, 1, ffn, ffn, packed_.data() + row * PackedWidth(ffn));
    }
  });
  Multiply(layer.down, rows, ffn, config_.hidden, hidden_.data(), /*accumulate=*/true);
}

// The rows that want logits move to the front; the others are done.
void Decoder::Head(std::span<const StepRow> rows) {
  std::int64_t wanted = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (!rows[r].wants_logits) continue;
    std::memmove(hidden_.data() + wanted * config_.hidden,
                 hidden_.data() + static_cast<std::int64_t>(r) * config_.hidden,
                 static_cast<std::size_t>(config_.hidden) * sizeof(float));
    ++wanted;
  }
  CHECK(wanted <= max_logits_);
  if (wanted == 0) return;
  NormAndPack(hidden_.data(), wanted, final_norm_);
  Multiply(head_, wanted, config_.hidden, config_.vocabulary, logits_.data(), /*accumulate=*/false);
}

void Decoder::NormAndPack(const float* x, std::int64_t rows, WeightView weight) {
  const std::int64_t size = config_.hidden;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const double elements_ns = static_cast<double>(rows * size) * kElementNs;
  workers_.ForRanges(rows, 8, elements_ns, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* normed = normed_.data() + row * size;
      RmsNormOnHost(x + row * size, size, weight, eps, normed);
      PackRowsOnHost(normed, 1, size, size, packed_.data() + row * PackedWidth(size));
    }
  });
}

// y[rows][outputs] from the packed rows of `k` elements.
void Decoder::Multiply(WeightView w, std::int64_t rows, std::int64_t k, std::int64_t outputs, float* y,
                       bool accumulate) {
  const GemmProblem problem{packed_.data(), rows, k, w, y, outputs, accumulate};
  const double bytes = static_cast<double>(outputs * k * w.item_bytes());
  const double multiply_adds = static_cast<double>(rows) * static_cast<double>(outputs * k);
  const std::int64_t fitting = kRangeWeightBytes / (k * w.item_bytes());
  const std::int64_t grain = std::max(fitting / kRangeOutputsMultiple, std::int64_t{1}) * kRangeOutputsMultiple;
  workers_.ForRanges(outputs, grain, std::max(bytes * kWeightByteNs, multiply_adds * kMultiplyAddNs),
                     [&](std::int64_t begin, std::int64_t end, int) { GemmOnHost(problem, begin, end); });
}

std::span<const float> Decoder::Logits(std::int64_t i) const {
  return {logits_.data() + i * config_.vocabulary, static_cast<std::size_t>(config_.vocabulary)};
}

std::vector<std::optional<SampledToken>> Decoder::Sample(std::span<const SampleWish> wishes) {
  std::vector<std::optional<SampledToken>> tokens(wishes.size());
  const auto count = static_cast<std::int64_t>(wishes.size());
  const double elements_ns = static_cast<double>(count * config_.vocabulary) * 2 * kElementNs;
  workers_.ForRanges(count, 1, elements_ns, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const SampleWish& wish = wishes[static_cast<std::size_t>(i)];
      const std::span<float> scratch(logits_.data() + (max_logits_ + i) * config_.vocabulary,
                                     static_cast<std::size_t>(config_.vocabulary));
      tokens[static_cast<std::size_t>(i)] =
          SampleOnHost(Logits(i), wish.temperature, UniformAt(wish.seed, wish.position), scratch);
    }
  });
  return tokens;
}

}  // namespace bascule
