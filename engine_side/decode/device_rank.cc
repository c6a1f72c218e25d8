#include "engine_side/decode/device_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/checked_math.h"
#include "kernels/rope.h"

namespace bascule {
namespace {

constexpr std::int64_t kScratchFloats = std::int64_t{64} << 20;  // of attention, as a rule: scores of problems at once
constexpr std::int64_t kAnglePositions = 4096;                   // whose angles are uploaded at once
constexpr Duration kUploadPatience = std::chrono::seconds(60);

WeightView AsWeights(const float* x) { return {reinterpret_cast<const std::byte*>(x), WeightType::kF32}; }

}  // namespace

DeviceRank::DeviceRank(const DecoderOptions& options, const DecodeDevices& devices, int rank, const Sizes& sizes)
    : config_(options.config),
      shape_(options.shape),
      rank_(rank),
      sizes_(sizes),
      device_(*devices.devices[static_cast<std::size_t>(rank)]),
      kernels_(*devices.kernels) {}

Result<std::unique_ptr<DeviceRank>> DeviceRank::Create(const DecoderOptions& options, const DecodeDevices& devices,
                                                       int rank, const Sizes& sizes) {
  std::unique_ptr<DeviceRank> made(new DeviceRank(options, devices, rank, sizes));
  RETURN_IF_ERROR(made->Allocate(devices));
  RETURN_IF_ERROR(made->UploadAngles());
  return made;
}

std::int64_t DeviceRank::own_outputs() const {
  return std::clamp<std::int64_t>(config_.vocabulary - rank_ * shape_.vocabulary, 0, shape_.vocabulary);
}

Status DeviceRank::Allocate(const DecodeDevices& devices) {
  const std::int64_t rows = sizes_.rows, logits = sizes_.logits, hidden = config_.hidden, half = config_.head_size / 2;
  const std::int64_t problems = rows * shape_.kv_heads, of_problem = AttentionScratch(config_.max_positions);
  scratch_floats_ = std::min(problems * of_problem, std::max(kScratchFloats, of_problem));
  arena_.Reserve(block_, sizes_.table_bytes);
  arena_.Reserve(residual_, rows * hidden);
  if (!alone()) arena_.Reserve(product_, rows * hidden);
  arena_.Reserve(normed_, rows * hidden);
  arena_.Reserve(qkv_, rows * shape_.qkv_size());
  arena_.Reserve(attended_, rows * shape_.query_size);
  arena_.Reserve(gate_up_, rows * 2 * shape_.ffn);
  arena_.Reserve(gated_, rows * shape_.ffn);
  arena_.Reserve(cosines_, rows * half);
  arena_.Reserve(sines_, rows * half);
  arena_.Reserve(all_cosines_, config_.max_positions * half);
  arena_.Reserve(all_sines_, config_.max_positions * half);
  arena_.Reserve(wanted_, logits * hidden);
  arena_.Reserve(logits_, logits * (rank_ == 0 ? config_.vocabulary : shape_.vocabulary));
  if (rank_ == 0 && !alone()) arena_.Reserve(others_, logits * shape_.vocabulary);
  arena_.Reserve(scratch_, scratch_floats_);
  RETURN_IF_ERROR(arena_.Allocate(device_.memory()).WithContext("activations"));

  const std::optional<std::int64_t> page_floats = sizes_.kv.PageFloats();
  const auto bytes = CheckedMul(page_floats.value_or(std::numeric_limits<std::int64_t>::max()),
                                sizes_.pages * std::int64_t{sizeof(float)});
  if (!bytes) return Status::ResourceExhausted("device_memory", fmt::format("kv_pages={}", sizes_.pages));
  Result<std::unique_ptr<DeviceBuffer>> pool = device_.memory().Allocate(static_cast<std::size_t>(*bytes));
  if (!pool.ok()) return pool.status().WithContext(fmt::format("kv_pages={}", sizes_.pages));
  pool_ = std::move(pool).value();
  ASSIGN_OR_RETURN(stream_, device_.MakeStream(StreamPriority::kHigh));
  const std::int64_t outputs = std::max({shape_.qkv_size(), hidden, 2 * shape_.ffn});
  const DeviceGemmLimits limits{.activations = rows * std::max({hidden, shape_.query_size, shape_.ffn}),
                                .results = std::max(rows * outputs, logits * shape_.vocabulary),
                                .precision = devices.precision,
                                .workspace_bytes = devices.gemm_workspace_bytes};
  ASSIGN_OR_RETURN(gemm_, devices.gemm->make(device_, limits));
  return OkStatus();
}

// Every position's, as the host computes them, once.
Status DeviceRank::UploadAngles() {
  const std::vector<double> frequencies = FrequenciesOf(config_);
  const std::int64_t half = config_.head_size / 2, at_once = std::min(kAnglePositions, config_.max_positions);
  ASSIGN_OR_RETURN(const auto pinned,
                   device_.pinned_memory().Allocate(2 * static_cast<std::size_t>(at_once * half) * sizeof(float)));
  ASSIGN_OR_RETURN(const auto uploaded, device_.MakeEvent());
  auto* const cosines = reinterpret_cast<float*>(pinned->bytes().data());
  float* const sines = cosines + at_once * half;
  for (std::int64_t first = 0; first < config_.max_positions; first += at_once) {
    const std::int64_t count = std::min(at_once, config_.max_positions - first);
    for (std::int64_t p = 0; p < count; ++p) {
      RopeAngles(frequencies, first + p, {cosines + p * half, frequencies.size()},
                 {sines + p * half, frequencies.size()});
    }
    const std::int64_t floats = count * half, to = first * half;
    RETURN_IF_ERROR(stream_->Copy(BytesAt(all_cosines_ + to, floats), BytesAt(cosines, floats)));
    RETURN_IF_ERROR(stream_->Copy(BytesAt(all_sines_ + to, floats), BytesAt(sines, floats)));
    RETURN_IF_ERROR(stream_->Record(*uploaded));
    RETURN_IF_ERROR(AwaitEvent(*uploaded, Deadline::After(Clock::Real(), kUploadPatience), Clock::Real()));
  }
  return OkStatus();
}

Status DeviceRank::CopyPage(std::int32_t from, std::int32_t to) {
  const auto bytes = static_cast<std::size_t>(*sizes_.kv.PageFloats()) * sizeof(float);
  const std::span<std::byte> pool = pool_->bytes();
  return stream_->Copy(pool.subspan(static_cast<std::size_t>(to) * bytes, bytes),
                       pool.subspan(static_cast<std::size_t>(from) * bytes, bytes));
}

Status DeviceRank::Embed(const StepTables& tables, const StepShape& shape) {
  const StepTables::View view = tables.In(block_);
  const std::int64_t half = config_.head_size / 2;
  const auto angles = [&](const float* all, float* of_rows) {
    return kernels_.take_rows({AsWeights(all), 0, config_.max_positions, half}, view.positions, shape.rows, of_rows,
                              stream_->handle());
  };
  RETURN_IF_ERROR(angles(all_cosines_, cosines_));
  RETURN_IF_ERROR(angles(all_sines_, sines_));
  const RowTable embedding{weights_.embedding, rank_ * shape_.vocabulary, shape_.vocabulary, config_.hidden};
  return kernels_.take_rows(embedding, view.tokens, shape.rows, residual_, stream_->handle());
}

Status DeviceRank::Norm(const float* x, std::int64_t rows, WeightView w, float* y) {
  return kernels_.rms_norm(x, rows, config_.hidden, w, static_cast<float>(config_.rms_norm_eps), y, stream_->handle());
}

Status DeviceRank::Multiply(const float* x, std::int64_t rows, std::int64_t k, WeightView w, std::int64_t outputs,
                            float* y) {
  return gemm_->Multiply({.x = x, .rows = rows, .k = k, .w = w, .outputs = outputs, .y = y, .y_stride = outputs},
                         stream_->handle());
}

Status DeviceRank::AddBias(WeightView bias, std::int64_t rows, std::int64_t size, float* y) {
  return bias.data == nullptr ? OkStatus() : kernels_.add(bias, 0, rows, size, y, stream_->handle());
}

Status DeviceRank::MakeSummand(const float* x, std::int64_t rows, std::int64_t k, WeightView w) {
  return gemm_->Multiply({.x = x,
                          .rows = rows,
                          .k = k,
                          .w = w,
                          .outputs = config_.hidden,
                          .y = summand(),
                          .y_stride = config_.hidden,
                          .accumulate = alone()},
                         stream_->handle());
}

Status DeviceRank::AddSum(std::int64_t rows, WeightView bias) {
  if (!alone()) {
    RETURN_IF_ERROR(
        kernels_.add(AsWeights(product_), config_.hidden, rows, config_.hidden, residual_, stream_->handle()));
  }
  return AddBias(bias, rows, config_.hidden, residual_);
}

Status DeviceRank::Attend(std::int64_t layer, const StepTables& tables, const StepShape& shape) {
  const LayerWeights& w = Layer(layer);
  if (layer > 0) RETURN_IF_ERROR(AddSum(shape.rows, Layer(layer - 1).down_bias));
  RETURN_IF_ERROR(Norm(residual_, shape.rows, w.input_norm, normed_));
  RETURN_IF_ERROR(Multiply(normed_, shape.rows, config_.hidden, w.qkv, shape_.qkv_size(), qkv_));
  RETURN_IF_ERROR(AddBias(w.qkv_bias, shape.rows, shape_.qkv_size(), qkv_));
  RETURN_IF_ERROR(Rotate(layer, shape.rows));
  RETURN_IF_ERROR(AttendToCache(layer, tables, shape));
  return MakeSummand(attended_, shape.rows, shape_.query_size, w.out);
}

// The key heads follow the query heads.
Status DeviceRank::Rotate(std::int64_t layer, std::int64_t rows) {
  const LayerWeights& w = Layer(layer);
  const std::int64_t size = config_.head_size, stride = shape_.qkv_size();
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  if (config_.qk_norm) {
    RETURN_IF_ERROR(
        kernels_.rms_norm_heads(qkv_, rows, stride, shape_.query_heads, size, w.q_norm, eps, stream_->handle()));
    RETURN_IF_ERROR(kernels_.rms_norm_heads(qkv_ + shape_.query_size, rows, stride, shape_.kv_heads, size, w.k_norm,
                                            eps, stream_->handle()));
  }
  return kernels_.rope(qkv_, rows, stride, shape_.query_heads + shape_.kv_heads, size / 2, cosines_, sines_,
                       stream_->handle());
}

PagedRows DeviceRank::Cache(std::int64_t layer, const StepTables& tables) const {
  const StepTables::View view = tables.In(block_);
  const KvHeadView head = KvHeadOf(sizes_.kv, layer, 0);
  return {.pool = reinterpret_cast<float*>(pool_->bytes().data()),
          .page_floats = head.page_floats,
          .page_tokens = head.page_tokens,
          .key_offset = head.key_offset,
          .value_offset = head.value_offset,
          .head_floats = KvHeadOf(sizes_.kv, layer, 1).key_offset - head.key_offset,
          .head_size = head.head_size,
          .kv_heads = shape_.kv_heads,
          .page_tables = view.page_tables,
          .first_page = view.first_page,
          .positions = view.positions};
}

// The keys and values of all rows are stored before any row attends: rows of one request attend to each other.
Status DeviceRank::AttendToCache(std::int64_t layer, const StepTables& tables, const StepShape& shape) {
  const float* const keys = qkv_ + shape_.query_size;
  AttentionRows rows{.cache = Cache(layer, tables),
                     .heads = shape_.query_heads / shape_.kv_heads,
                     .query = qkv_,
                     .query_stride = shape_.qkv_size(),
                     .scale = 1 / std::sqrt(static_cast<float>(config_.head_size)),
                     .out = attended_,
                     .out_stride = shape_.query_size,
                     .scratch = scratch_,
                     .scratch_floats = AttentionScratch(shape.positions)};
  RETURN_IF_ERROR(kernels_.store_kv_rows(rows.cache, keys, keys + shape_.kv_size, shape_.qkv_size(), shape.rows,
                                         stream_->handle()));
  const std::int64_t problems = shape.rows * shape_.kv_heads, at_once = scratch_floats_ / rows.scratch_floats;
  for (std::int64_t first = 0; first < problems; first += at_once) {
    RETURN_IF_ERROR(kernels_.attention_rows(rows, first, std::min(at_once, problems - first), stream_->handle()));
  }
  return OkStatus();
}

Status DeviceRank::FeedForward(std::int64_t layer, const StepShape& shape) {
  const LayerWeights& w = Layer(layer);
  RETURN_IF_ERROR(AddSum(shape.rows, w.out_bias));
  RETURN_IF_ERROR(Norm(residual_, shape.rows, w.post_attention_norm, normed_));
  RETURN_IF_ERROR(Multiply(normed_, shape.rows, config_.hidden, w.gate_up, 2 * shape_.ffn, gate_up_));
  RETURN_IF_ERROR(AddBias(w.gate_up_bias, shape.rows, 2 * shape_.ffn, gate_up_));
  RETURN_IF_ERROR(kernels_.swiglu_rows(gate_up_, shape.rows, shape_.ffn, gated_, stream_->handle()));
  return MakeSummand(gated_, shape.rows, shape_.ffn, w.down);
}

Status DeviceRank::Logits(const StepTables& tables, const StepShape& shape) {
  RETURN_IF_ERROR(AddSum(shape.rows, weights_.layers.back().down_bias));
  if (shape.logits == 0 || own_outputs() == 0) return OkStatus();  // the last ranks may hold padding only
  const RowTable rows{AsWeights(residual_), 0, shape.rows, config_.hidden};
  RETURN_IF_ERROR(kernels_.take_rows(rows, tables.In(block_).logit_rows, shape.logits, wanted_, stream_->handle()));
  RETURN_IF_ERROR(Norm(wanted_, shape.logits, weights_.final_norm, wanted_));
  return gemm_->Multiply({.x = wanted_,
                          .rows = shape.logits,
                          .k = config_.hidden,
                          .w = weights_.head,
                          .outputs = own_outputs(),
                          .y = logits_,
                          .y_stride = rank_ == 0 ? config_.vocabulary : own_outputs()},
                         stream_->handle());
}

Status DeviceRank::GatherLogits(const DeviceRank& other, const StepShape& shape) {
  const std::int64_t outputs = other.own_outputs(), first = other.rank_ * shape_.vocabulary;
  if (shape.logits == 0 || outputs == 0) return OkStatus();
  RETURN_IF_ERROR(
      stream_->Copy(BytesAt(others_, shape.logits * outputs), BytesAt(other.logits_, shape.logits * outputs)));
  return kernels_.place_rows(others_, outputs, shape.logits, outputs, logits_ + first, config_.vocabulary,
                             stream_->handle());
}

}  // namespace bascule
