#include "engine_side/decode/rank_decoder.h"

#include <algorithm>
#include <cmath>

#include "kernels/cast.h"
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

// A library's product wants large ranges, in whole tiles of its own.
constexpr std::int64_t kFastRangeOutputs = 256, kFastRangeMultiple = 64;
constexpr double kFastMultiplyAddNs = 1.0 / 250;

std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

WeightView AsWeights(const float* x) { return {reinterpret_cast<const std::byte*>(x), WeightType::kF32}; }

}  // namespace

Result<SharedActivations> SharedActivations::Allocate(const DecoderOptions& options) {
  const ModelConfig& config = options.config;
  SharedActivations shared;
  shared.vocabulary = config.vocabulary;
  const std::int64_t rows = RowsComputed(options.max_rows), hidden = config.hidden;
  ASSIGN_OR_RETURN(shared.residual, FloatBuffer::Allocate(rows * hidden));
  shared.products.emplace_back();
  for (int rank = 1; rank < options.shape.ranks; ++rank) {
    ASSIGN_OR_RETURN(FloatBuffer product, FloatBuffer::Allocate(rows * hidden));
    shared.products.push_back(std::move(product));
  }
  ASSIGN_OR_RETURN(shared.normed, FloatBuffer::Allocate(rows * hidden));
  ASSIGN_OR_RETURN(shared.packed, FloatBuffer::Allocate(rows * PackedWidth(hidden)));
  ASSIGN_OR_RETURN(shared.cosines, FloatBuffer::Allocate(rows * (config.head_size / 2)));
  ASSIGN_OR_RETURN(shared.sines, FloatBuffer::Allocate(rows * (config.head_size / 2)));
  ASSIGN_OR_RETURN(shared.logits, FloatBuffer::Allocate(RowsComputed(options.max_logits) * config.vocabulary));
  return shared;
}

Result<std::unique_ptr<RankDecoder>> RankDecoder::Create(const DecoderOptions& options, int rank,
                                                         SharedActivations& shared, KvCache& cache) {
  std::unique_ptr<RankDecoder> decoder(new RankDecoder(options, rank, shared, cache));
  RETURN_IF_ERROR(decoder->Allocate());
  return decoder;
}

RankDecoder::RankDecoder(const DecoderOptions& options, int rank, SharedActivations& shared, KvCache& cache)
    : options_(options),
      config_(options.config),
      shape_(options.shape),
      max_rows_(options.max_rows),
      max_logits_(options.max_logits),
      rank_(rank),
      rope_frequencies_(FrequenciesOf(config_)),
      fast_(options.fast),
      shared_(shared),
      cache_(cache),
      workers_(std::max(1, options.threads / options.shape.ranks), options.cores) {}

Status RankDecoder::Allocate() {
  const std::int64_t rows = RowsComputed(max_rows_), widest = std::max(shape_.query_size, shape_.ffn);
  ASSIGN_OR_RETURN(qkv_, FloatBuffer::Allocate(rows * shape_.qkv_size()));
  ASSIGN_OR_RETURN(attended_, FloatBuffer::Allocate(rows * shape_.query_size));
  ASSIGN_OR_RETURN(gate_up_, FloatBuffer::Allocate(rows * 2 * shape_.ffn));
  ASSIGN_OR_RETURN(packed_, FloatBuffer::Allocate(rows * PackedWidth(widest)));
  ASSIGN_OR_RETURN(scores_, FloatBuffer::Allocate(workers_.threads() * AttentionScratch(config_.max_positions)));
  ASSIGN_OR_RETURN(sampling_, FloatBuffer::Allocate(workers_.threads() * config_.vocabulary));
  return OkStatus();
}

void RankDecoder::Begin(Rows rows, const StepWeights& weights) {
  weights_ = RankWeights::Of(options_, rank_, weights);
  const std::int64_t first = rank_ * shape_.vocabulary;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::int64_t token = rows[r].token - first;
    if (token < 0 || token >= shape_.vocabulary) continue;
    WidenOnHost(weights_.embedding, token * config_.hidden, config_.hidden, Residual(static_cast<std::int64_t>(r)));
  }
  const std::int64_t half = config_.head_size / 2;
  const Range own = Own(static_cast<std::int64_t>(rows.size()));
  for (std::int64_t row = own.begin; row < own.end; ++row) {
    RopeAngles(rope_frequencies_, rows[static_cast<std::size_t>(row)].position,
               {shared_.cosines.data() + row * half, rope_frequencies_.size()},
               {shared_.sines.data() + row * half, rope_frequencies_.size()});
  }
}

void RankDecoder::PrepareAttention(std::int64_t layer, Rows rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  if (layer > 0) AddProductsToOwn(count, Layer(layer - 1).down_bias);
  NormAndPackOwn(count, Layer(layer).input_norm, Layer(layer).qkv);
}

void RankDecoder::Attend(std::int64_t layer, Rows rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  Multiply(shared_.packed.data(), Layer(layer).qkv, count, config_.hidden, shape_.qkv_size(), qkv_.data(),
           shape_.qkv_size(), /*accumulate=*/false);
  RotateAndStore(layer, rows);
  AttendToCache(layer, rows);
  const std::int64_t size = shape_.query_size;
  const double row_ns = static_cast<double>(count * size) * kElementNs;
  const bool fast = Fast(count, Layer(layer).out);
  workers_.ForRanges(count, 8, row_ns, [&](std::int64_t begin, std::int64_t end, int) {
    Pack(fast, attended_.data() + begin * size, end - begin, size, size, packed_.data(), begin);
  });
  MultiplyIntoResidual(Layer(layer).out, count, size);
}

// The keys and values of all rows are stored before any row attends: rows of one request attend to each other.
void RankDecoder::RotateAndStore(std::int64_t layer, Rows rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  const double row_ns = static_cast<double>(count * shape_.qkv_size()) * kElementNs;
  workers_.ForRanges(count, 1, row_ns, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      RotateAndStoreRow(layer, rows[static_cast<std::size_t>(row)], row);
    }
  });
}

void RankDecoder::RotateAndStoreRow(std::int64_t layer, const StepRow& at, std::int64_t row) {
  const LayerWeights& w = Layer(layer);
  const std::int64_t size = config_.head_size;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const std::span<const float> cosines(shared_.cosines.data() + row * (size / 2), rope_frequencies_.size());
  const std::span<const float> sines(shared_.sines.data() + row * (size / 2), rope_frequencies_.size());
  float* query = qkv_.data() + row * shape_.qkv_size();
  AddBias(w.qkv_bias, shape_.qkv_size(), query);
  for (std::int64_t head = 0; head < shape_.query_heads + shape_.kv_heads; ++head) {
    float* of_head = query + head * size;  // the key heads follow the query heads
    const WeightView norm = head < shape_.query_heads ? w.q_norm : w.k_norm;
    if (config_.qk_norm) RmsNormOnHost(of_head, size, norm, eps, of_head);
    RopeOnHost(of_head, cosines, sines);
  }
  const float* key = query + shape_.query_size;
  const float* value = key + shape_.kv_size;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    StoreKvOnHost(cache_.Head(rank_, layer, head, at.pages), at.position, key + head * size, value + head * size);
  }
}

void RankDecoder::AttendToCache(std::int64_t layer, Rows rows) {
  const std::int64_t size = config_.head_size;
  const std::int64_t group = shape_.query_heads / shape_.kv_heads;
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  double multiply_adds = 0;
  for (const StepRow& row : rows) multiply_adds += static_cast<double>(2 * (row.position + 1) * shape_.query_size);
  const std::int64_t items = static_cast<std::int64_t>(rows.size()) * shape_.kv_heads;
  workers_.ForRanges(items, 1, multiply_adds * kMultiplyAddNs, [&](std::int64_t begin, std::int64_t end, int thread) {
    float* scratch = scores_.data() + thread * AttentionScratch(config_.max_positions);
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t row = item / shape_.kv_heads, kv_head = item % shape_.kv_heads;
      const StepRow& at = rows[static_cast<std::size_t>(row)];
      AttentionOnHost({.cache = cache_.Head(rank_, layer, kv_head, at.pages),
                       .positions = at.position + 1,
                       .heads = group,
                       .query = qkv_.data() + row * shape_.qkv_size() + kv_head * group * size,
                       .scale = scale,
                       .out = attended_.data() + row * shape_.query_size + kv_head * group * size,
                       .scratch = scratch});
    }
  });
}

void RankDecoder::PrepareFeedForward(std::int64_t layer, Rows rows) {
  const auto count = static_cast<std::int64_t>(rows.size());
  AddProductsToOwn(count, Layer(layer).out_bias);
  NormAndPackOwn(count, Layer(layer).post_attention_norm, Layer(layer).gate_up);
}

void RankDecoder::FeedForward(std::int64_t layer, Rows rows) {
  const LayerWeights& w = Layer(layer);
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t ffn = shape_.ffn;
  Multiply(shared_.packed.data(), w.gate_up, count, config_.hidden, 2 * ffn, gate_up_.data(), 2 * ffn,
           /*accumulate=*/false);
  const double elements_ns = static_cast<double>(count * ffn) * kElementNs;
  const bool fast = Fast(count, w.down);
  workers_.ForRanges(count, 1, elements_ns, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = begin; row < end; ++row) {
      float* gate = gate_up_.data() + row * 2 * ffn;
      AddBias(w.gate_up_bias, 2 * ffn, gate);
      SwigluOnHost(gate, gate + ffn, ffn, gate);
      Pack(fast, gate, 1, ffn, ffn, packed_.data(), row);
    }
  });
  MultiplyIntoResidual(w.down, count, ffn);
}

// The rows that want logits are packed one after another.
void RankDecoder::PrepareLogits(Rows rows) {
  const Range own = Own(static_cast<std::int64_t>(rows.size()));
  AddProductsToOwn(static_cast<std::int64_t>(rows.size()), Layer(config_.layers - 1).down_bias);
  const bool fast = Fast(std::ranges::count_if(rows, &StepRow::wants_logits), weights_.head);
  std::int64_t packed_row = 0;
  for (std::int64_t row = 0; row < own.end; ++row) {
    if (!rows[static_cast<std::size_t>(row)].wants_logits) continue;
    if (row >= own.begin) NormAndPack(fast, row, packed_row, weights_.final_norm);
    ++packed_row;
  }
}

void RankDecoder::Logits(Rows rows) {
  const std::int64_t wanted = std::ranges::count_if(rows, &StepRow::wants_logits);
  CHECK(wanted <= max_logits_);
  const std::int64_t first = rank_ * shape_.vocabulary;
  const std::int64_t outputs = std::min(shape_.vocabulary, config_.vocabulary - first);
  if (wanted == 0 || outputs <= 0) return;  // the last ranks may hold padding only
  Multiply(shared_.packed.data(), weights_.head, wanted, config_.hidden, outputs, shared_.logits.data() + first,
           config_.vocabulary, /*accumulate=*/false);
}

void RankDecoder::NormAndPackOwn(std::int64_t rows, WeightView norm, WeightView w) {
  const Range own = Own(rows);
  const double elements_ns = static_cast<double>(own.size() * config_.hidden) * kElementNs;
  const bool fast = Fast(rows, w);
  workers_.ForRanges(own.size(), 8, elements_ns, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t row = own.begin + begin; row < own.begin + end; ++row) NormAndPack(fast, row, row, norm);
  });
}

void RankDecoder::NormAndPack(bool fast, std::int64_t row, std::int64_t packed_row, WeightView norm) {
  const std::int64_t size = config_.hidden;
  float* normed = shared_.normed.data() + row * size;
  RmsNormOnHost(Residual(row), size, norm, static_cast<float>(config_.rms_norm_eps), normed);
  Pack(fast, normed, 1, size, size, shared_.packed.data(), packed_row);
}

void RankDecoder::Pack(bool fast, const float* x, std::int64_t count, std::int64_t k, std::int64_t x_stride,
                       float* packed, std::int64_t row) {
  if (!fast) return PackRowsOnHost(x, count, k, x_stride, packed + row * PackedWidth(k));
  const auto bytes = [](auto* elements, std::int64_t n) {
    return std::as_writable_bytes(std::span(elements, static_cast<std::size_t>(n)));
  };
  auto* to = reinterpret_cast<std::uint16_t*>(packed) + row * PackedBf16Width(k);
  for (std::int64_t r = 0; r < count; ++r) {
    CastF32ToBf16OnHost(std::as_bytes(std::span(x + r * x_stride, static_cast<std::size_t>(k))),
                        bytes(to + r * PackedBf16Width(k), k));
  }
}

void RankDecoder::MultiplyIntoResidual(WeightView w, std::int64_t rows, std::int64_t k) {
  float* y = rank_ == 0 ? Residual(0) : shared_.products[static_cast<std::size_t>(rank_)].data();
  Multiply(packed_.data(), w, rows, k, config_.hidden, y, config_.hidden, /*accumulate=*/rank_ == 0);
}

void RankDecoder::AddProductsToOwn(std::int64_t rows, WeightView bias) {
  const Range own = Own(rows);
  const std::int64_t first = own.begin * config_.hidden;
  for (std::size_t rank = 1; rank < shared_.products.size(); ++rank) {
    AddOnHost(AsWeights(shared_.products[rank].data() + first), own.size() * config_.hidden, Residual(own.begin));
  }
  for (std::int64_t row = own.begin; row < own.end; ++row) AddBias(bias, config_.hidden, Residual(row));
}

void RankDecoder::Multiply(const float* packed, WeightView w, std::int64_t rows, std::int64_t k, std::int64_t outputs,
                           float* y, std::int64_t y_stride, bool accumulate) {
  const double multiply_adds = static_cast<double>(rows) * static_cast<double>(outputs * k);
  const double bytes_ns = static_cast<double>(outputs * k * w.item_bytes()) * kWeightByteNs;
  if (Fast(rows, w)) {
    const FastGemmProblem problem{reinterpret_cast<const std::byte*>(packed), rows, k, w.data, y, y_stride, accumulate};
    const std::int64_t share = outputs / (2 * workers_.threads());  // two each: whoever is done first helps
    const std::int64_t grain = RoundUp(std::max(share, kFastRangeOutputs), kFastRangeMultiple);
    workers_.ForRanges(outputs, grain, std::max(bytes_ns, multiply_adds * kFastMultiplyAddNs),
                       [&](std::int64_t begin, std::int64_t end, int) { fast_->Multiply(problem, begin, end); });
    return;
  }
  const GemmProblem problem{packed, rows, k, w, y, y_stride, accumulate};
  const std::int64_t fitting = kRangeWeightBytes / (k * w.item_bytes());
  const std::int64_t grain = std::max(fitting / kRangeOutputsMultiple, std::int64_t{1}) * kRangeOutputsMultiple;
  workers_.ForRanges(outputs, grain, std::max(bytes_ns, multiply_adds * kMultiplyAddNs),
                     [&](std::int64_t begin, std::int64_t end, int) { GemmOnHost(problem, begin, end); });
}

void RankDecoder::Sample(std::span<const SampleWish> wishes, std::span<std::optional<SampledToken>> tokens) {
  const Range own = Own(static_cast<std::int64_t>(wishes.size()));
  const double elements_ns = static_cast<double>(own.size() * config_.vocabulary) * 2 * kElementNs;
  workers_.ForRanges(own.size(), 1, elements_ns, [&](std::int64_t begin, std::int64_t end, int thread) {
    const std::span<float> scratch(sampling_.data() + thread * config_.vocabulary,
                                   static_cast<std::size_t>(config_.vocabulary));
    for (std::int64_t i = own.begin + begin; i < own.begin + end; ++i) {
      const SampleWish& wish = wishes[static_cast<std::size_t>(i)];
      tokens[static_cast<std::size_t>(i)] =
          SampleOnHost(shared_.Logits(i), wish.rule, UniformAt(wish.seed, wish.position, wish.sample), scratch);
    }
  });
}

}  // namespace bascule
