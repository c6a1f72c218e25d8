#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "benchmarks/gpu/rows.h"
#include "engine_side/decode/device_decoder.h"
#include "model/engine_layout.h"

namespace bascule {
namespace {

constexpr std::array kBatches = {1, 4, 16};
constexpr std::int64_t kPageTokens = 16;
constexpr int kWarmSteps = 3;  // the first one is captured, the second one launches the graph for the first time

struct Lengths {
  std::int64_t context = 0;  // tokens that each request has in the cache before the first step
  int steps = 0;             // that are timed, in each round
};
Lengths LengthsOf(const GpuScale& scale) { return scale.dry ? Lengths{20, 2} : Lengths{512, 32}; }

// The sizes of Llama 3 8B, with as many of its 32 layers as the scale has bytes for.
ModelConfig ModelFor(const GpuScale& scale) {
  ModelConfig config{.architecture = "LlamaForCausalLM",
                     .layers = 2,
                     .hidden = 64,
                     .query_heads = 4,
                     .kv_heads = 2,
                     .head_size = 16,
                     .ffn = 128,
                     .vocabulary = 256,
                     .max_positions = 64,
                     .rms_norm_eps = 1e-5,
                     .rope_theta = 500000};
  if (scale.dry) return config;
  config.hidden = 4096;
  config.query_heads = 32;
  config.kv_heads = 8;
  config.head_size = 128;
  config.ffn = 14336;
  config.vocabulary = 128256;
  config.max_positions = 2048;
  const std::int64_t of_layer = 2 * config.hidden * (2 * 4096 + 2 * 1024 + 3 * config.ffn);
  const std::int64_t of_ends = 2 * 2 * config.vocabulary * config.hidden;
  config.layers = std::clamp<std::int64_t>((scale.model_bytes - of_ends + of_layer / 2) / of_layer, 1, 32);
  return config;
}

// Weights in one piece of memory: small numbers, whose logits are finite.
class RandomModel final : public StepWeights {
 public:
  static Result<std::shared_ptr<RandomModel>> Make(const GpuRun& run, const RankLayout& rank) {
    const auto model = std::make_shared<RandomModel>();
    std::int64_t bytes = 0;
    for (const LocalTensor& tensor : rank.tensors) bytes += Room(tensor.Bytes());
    ASSIGN_OR_RETURN(model->memory_, run.SmallNumbers(bytes));
    std::span<std::byte> rest = model->memory_->bytes();
    for (const LocalTensor& tensor : rank.tensors) {
      model->tensors_.push_back(rest.first(static_cast<std::size_t>(tensor.Bytes())));
      rest = rest.subspan(static_cast<std::size_t>(Room(tensor.Bytes())));
    }
    return model;
  }
  const WeightVersion& version() const override { return version_; }
  std::span<const std::byte> Tensor(int /*engine_rank*/, int tensor) const override {
    return tensors_[static_cast<std::size_t>(tensor)];
  }

 private:
  static std::int64_t Room(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

  std::unique_ptr<DeviceBuffer> memory_;
  std::vector<std::span<const std::byte>> tensors_;
  const WeightVersion version_;
};

// Requests that all decode at once, each with pages of its own.
class Batch {
 public:
  Batch(int requests, std::int64_t vocabulary, const Lengths& lengths)
      : vocabulary_(vocabulary), lengths_(lengths), rows_(static_cast<std::size_t>(requests)) {
    const std::int64_t pages = PagesOf(lengths);
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      pages_.emplace_back(static_cast<std::size_t>(pages));
      std::iota(pages_[r].begin(), pages_[r].end(), static_cast<std::int32_t>(static_cast<std::int64_t>(r) * pages));
    }
  }
  static std::int64_t PagesOf(const Lengths& lengths) {
    return (lengths.context + kWarmSteps + lengths.steps) / kPageTokens + 1;
  }

  Status Steps(Decoder& decoder, const std::shared_ptr<StepWeights>& weights, int first, int count) {
    const std::vector<SampleWish> greedy(rows_.size());
    for (int step = first; step < first + count; ++step) {
      for (std::size_t r = 0; r < rows_.size(); ++r) {
        const auto token =
            static_cast<std::int32_t>((step * 31 + std::ssize(rows_) + static_cast<int>(r)) % vocabulary_);
        rows_[r] = {
            .token = token, .position = lengths_.context + step, .pages = pages_[r].data(), .wants_logits = true};
      }
      ASSIGN_OR_RETURN(const Decoder::Draws draws, decoder.Step(rows_, greedy, weights));
      if (!std::ranges::all_of(draws, [](const auto& draw) { return draw.has_value(); })) {
        return Status::Internal("logits_not_finite", fmt::format("step {} of {} requests", step, rows_.size()));
      }
    }
    return OkStatus();
  }

 private:
  const std::int64_t vocabulary_;
  const Lengths lengths_;
  std::vector<StepRow> rows_;
  std::vector<std::vector<std::int32_t>> pages_;
};

Result<std::unique_ptr<DeviceDecoder>> OpenDecoder(const ModelConfig& config, const EngineTensors& tensors,
                                                   const Lengths& lengths) {
  ASSIGN_OR_RETURN(const RankShape shape, RankShapeOf(config, tensors, /*ranks=*/1));
  ASSIGN_OR_RETURN(DecodeDevices devices, DecodeDevices::Open(std::array{0}));
  const KvShape kv{
      .layers = config.layers, .kv_heads = shape.kv_heads, .head_size = config.head_size, .page_tokens = kPageTokens};
  DecoderOptions options{
      .config = config, .tensors = tensors, .shape = shape, .max_rows = kBatches.back(), .max_logits = kBatches.back()};
  return DeviceDecoder::Create(std::move(options), std::move(devices), kv, kBatches.back() * Batch::PagesOf(lengths),
                               Clock::Real());
}

// Of one step, the median over the rounds.
Result<double> SecondsOfStep(const GpuRun& run, DeviceDecoder& decoder, const std::shared_ptr<StepWeights>& weights,
                             Batch& batch, const Lengths& lengths) {
  RETURN_IF_ERROR(batch.Steps(decoder, weights, 0, kWarmSteps));
  std::vector<double> seconds;
  for (int round = 0; round < run.scale().rounds; ++round) {
    const TimePoint began = Clock::Real().Now();
    RETURN_IF_ERROR(batch.Steps(decoder, weights, kWarmSteps, lengths.steps));
    seconds.push_back(std::chrono::duration<double>(Clock::Real().Now() - began).count() / lengths.steps);
  }
  return Quantile(seconds, 0.5);
}

}  // namespace

Status DecodeRows(GpuRun& run) {
  const ModelConfig config = ModelFor(run.scale());
  const Lengths lengths = LengthsOf(run.scale());
  ASSIGN_OR_RETURN(const EngineLayout engine, MakeEngineLayout(config, DType::kBf16));
  ASSIGN_OR_RETURN(const std::shared_ptr<RandomModel> weights, RandomModel::Make(run, engine.layout.ranks[0]));
  ASSIGN_OR_RETURN(const auto decoder, OpenDecoder(config, engine.tensors, lengths));
  ASSIGN_OR_RETURN(const double bandwidth, run.CopyBandwidth());
  // Of the embedding a step reads a few rows only.
  std::int64_t read = -engine.layout.ranks[0].tensors[static_cast<std::size_t>(engine.tensors.embedding)].Bytes();
  for (const LocalTensor& tensor : engine.layout.ranks[0].tensors) read += tensor.Bytes();
  for (const int requests : kBatches) {
    Batch batch(requests, config.vocabulary, lengths);
    ASSIGN_OR_RETURN(const double seconds, SecondsOfStep(run, *decoder, weights, batch, lengths));
    run.Row(fmt::format("gpu_decode_batch_{}", requests), requests / seconds, "tokens/s",
            requests * bandwidth / static_cast<double>(read),
            "the weights read once a step, at the bandwidth of a device copy");
  }
  return OkStatus();
}

}  // namespace bascule
