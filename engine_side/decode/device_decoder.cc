#include "engine_side/decode/device_decoder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "engine_side/decode/peer_sum.h"

namespace bascule {
namespace {

constexpr Duration kNap = std::chrono::microseconds(100);           // between two looks at a step that runs
constexpr Duration kLastPatience = std::chrono::milliseconds(200);  // with devices that have been given up

}  // namespace

DeviceDecoder::DeviceDecoder(DecoderOptions options, DecodeDevices devices, Clock& clock)
    : options_(std::move(options)), devices_(std::move(devices)), clock_(clock), captures_(devices_.graphs) {}

Result<std::unique_ptr<DeviceDecoder>> DeviceDecoder::Create(DecoderOptions options, DecodeDevices devices,
                                                             const KvShape& kv, std::int64_t pages, Clock& clock) {
  CHECK(std::ssize(devices.devices) == options.shape.ranks);
  std::unique_ptr<DeviceDecoder> decoder(new DeviceDecoder(std::move(options), std::move(devices), clock));
  RETURN_IF_ERROR(decoder->Allocate(kv, pages));
  return decoder;
}

DeviceDecoder::~DeviceDecoder() {
  if (done_ == nullptr || Drain(broken_.ok() ? devices_.step_deadline : kLastPatience).ok()) return;
  static Mutex mu;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  const MutexLock lock(mu);
  // In no order: what a device may still use stays as long as the process.
  kept->push_back(std::make_shared<decltype(ranks_)>(std::move(ranks_)));
  kept->push_back(std::make_shared<decltype(own_collective_)>(std::move(own_collective_)));
  kept->push_back(std::make_shared<decltype(tables_)>(std::move(tables_)));
  kept->push_back(std::make_shared<DeviceArena>(std::move(drawing_)));
  kept->push_back(std::shared_ptr<DeviceBuffer>(std::move(drawn_here_)));
  kept->push_back(std::shared_ptr<DeviceBuffer>(std::move(logits_here_)));
  kept->push_back(std::make_shared<StepGraphs>(std::move(graphs_)));
}

void DeviceDecoder::Stop() {
  if (held_ != nullptr) static_cast<void>(Drain(kLastPatience));
  held_.reset();
}

Status DeviceDecoder::Allocate(const KvShape& kv, std::int64_t pages) {
  const std::int64_t rows = options_.max_rows, logits = options_.max_logits, vocabulary = options_.config.vocabulary;
  Device& device = *devices_.devices.front();
  const StepTableSizes sizes{.rows = rows,
                             .logits = logits,
                             .table_pages = (options_.config.max_positions + kv.page_tokens - 1) / kv.page_tokens,
                             .page_tokens = kv.page_tokens};
  ASSIGN_OR_RETURN(tables_, StepTables::Create(device, sizes));
  for (int rank = 0; rank < options_.shape.ranks; ++rank) {
    ASSIGN_OR_RETURN(
        auto made,
        DeviceRank::Create(
            options_, devices_, rank,
            {.rows = rows, .logits = logits, .kv = kv, .pages = pages, .table_bytes = tables_->block_bytes()}));
    ranks_.push_back(std::move(made));
    if (rank == 0) continue;
    ASSIGN_OR_RETURN(auto joined, ranks_.back()->device().MakeEvent());
    joined_.push_back(std::move(joined));
  }
  if (options_.shape.ranks > 1 && devices_.collective == nullptr) {
    ASSIGN_OR_RETURN(own_collective_,
                     PeerSum::Create(devices_.devices, *devices_.kernels, rows * options_.config.hidden));
  }
  collective_ = own_collective_ != nullptr ? own_collective_.get() : devices_.collective.get();
  drawing_.Reserve(weights_of_draws_, logits * SampleWeights(vocabulary));
  drawing_.Reserve(sums_of_draws_, logits * SampleSums(vocabulary));
  drawing_.Reserve(drawn_, logits);
  RETURN_IF_ERROR(drawing_.Allocate(device.memory()).WithContext("sampling"));
  ASSIGN_OR_RETURN(drawn_here_,
                   device.pinned_memory().Allocate(static_cast<std::size_t>(logits) * sizeof(TokenLogprob)));
  ASSIGN_OR_RETURN(logits_here_, device.pinned_memory().Allocate(static_cast<std::size_t>(vocabulary) * sizeof(float)));
  host_scratch_.resize(static_cast<std::size_t>(vocabulary));
  ASSIGN_OR_RETURN(forked_, device.MakeEvent());
  ASSIGN_OR_RETURN(done_, device.MakeEvent());
  return OkStatus();
}

// Steps that only decode are padded, so that few graphs serve all of them; others are computed as they are.
StepShape DeviceDecoder::ShapeOf(std::span<const StepRow> rows) const {
  StepShape shape{.rows = std::ssize(rows), .logits = std::ranges::count_if(rows, &StepRow::wants_logits)};
  if (shape.logits == shape.rows && shape.rows <= options_.max_logits) {
    const auto padded = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(shape.rows)));
    shape.rows = shape.logits = std::min({padded, options_.max_rows, options_.max_logits});
    shape.positions = options_.config.max_positions;
    return shape;
  }
  for (const StepRow& row : rows) shape.positions = std::max(shape.positions, row.position + 1);
  return shape;
}

StepGraphs::Addresses DeviceDecoder::Resolve(const StepWeights& weights) {
  StepGraphs::Addresses addresses;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    RankWeights found = RankWeights::Of(options_, static_cast<int>(rank), weights);
    addresses.insert(addresses.end(), {found.embedding.data, found.final_norm.data, found.head.data});
    for (const LayerWeights& w : found.layers) {
      addresses.insert(addresses.end(), {w.input_norm.data, w.qkv.data, w.qkv_bias.data, w.q_norm.data, w.k_norm.data,
                                         w.out.data, w.out_bias.data, w.post_attention_norm.data, w.gate_up.data,
                                         w.gate_up_bias.data, w.down.data, w.down_bias.data});
    }
    ranks_[rank]->Use(std::move(found));
  }
  return addresses;
}

Status DeviceDecoder::CopyPages(std::span<const PageCopy> copies) {
  if (copies.empty()) return OkStatus();
  RETURN_IF_ERROR(broken_);
  const Status enqueued = [&]() -> Status {
    for (const auto& rank : ranks_) {
      for (const PageCopy& copy : copies) RETURN_IF_ERROR(rank->CopyPage(copy.from, copy.to));
    }
    return Join();
  }();
  return enqueued.ok() ? enqueued : Settle(enqueued);
}

Result<Decoder::Draws> DeviceDecoder::Step(std::span<const StepRow> rows, std::span<const SampleWish> wishes,
                                           std::shared_ptr<StepWeights> weights) {
  RETURN_IF_ERROR(broken_);
  held_ = std::move(weights);
  Status done = Enqueue(rows, wishes, *held_);
  if (done.ok()) done = Await(devices_.step_deadline);
  if (!done.ok()) return Settle(std::move(done));
  held_.reset();
  Result<Draws> draws = Collect(wishes);
  return draws.ok() ? std::move(draws) : Settle(draws.status());
}

Status DeviceDecoder::Enqueue(std::span<const StepRow> rows, std::span<const SampleWish> wishes,
                              const StepWeights& weights) {
  const StepShape shape = ShapeOf(rows);
  CHECK(std::ssize(wishes) <= shape.logits);
  tables_->Write(rows, shape);
  for_host_ = tables_->WriteDraws(wishes, first().logits(), options_.config.vocabulary, first().table_block());
  const std::span<const std::byte> tables = tables_->written();
  for (const auto& rank : ranks_) {
    RETURN_IF_ERROR(first().stream().Copy({rank->table_block(), tables.size()}, tables));
  }
  const StepGraphs::Addresses addresses = Resolve(weights);
  const bool decodes = shape.positions == options_.config.max_positions && shape.logits == shape.rows;
  DeviceGraph* const graph = decodes && captures_ ? graphs_.Find(addresses, shape.rows) : nullptr;
  if (graph != nullptr) {
    RETURN_IF_ERROR(first().stream().Launch(*graph));
  } else {
    RETURN_IF_ERROR(EnqueueModel(shape));
  }
  RETURN_IF_ERROR(EnqueueDraws(wishes));
  RETURN_IF_ERROR(first().stream().Record(*done_));
  if (decodes && captures_ && graph == nullptr) Capture(shape);
  return OkStatus();
}

Status DeviceDecoder::Fork() {
  if (ranks_.size() == 1) return OkStatus();
  RETURN_IF_ERROR(first().stream().Record(*forked_));
  for (std::size_t r = 1; r < ranks_.size(); ++r) RETURN_IF_ERROR(ranks_[r]->stream().WaitFor(*forked_));
  return OkStatus();
}

Status DeviceDecoder::Join() {
  for (std::size_t r = 1; r < ranks_.size(); ++r) {
    RETURN_IF_ERROR(ranks_[r]->stream().Record(*joined_[r - 1]));
    RETURN_IF_ERROR(first().stream().WaitFor(*joined_[r - 1]));
  }
  return OkStatus();
}

Status DeviceDecoder::SumOverRanks(float* (DeviceRank::*part)(), std::int64_t rows) {
  if (collective_ == nullptr) return OkStatus();
  std::vector<CollectivePart> parts;
  for (const auto& rank : ranks_) parts.push_back({((*rank).*part)(), &rank->stream()});
  return collective_->AllReduceSum(parts, rows * options_.config.hidden);
}

Status DeviceDecoder::EnqueueModel(const StepShape& shape) {
  RETURN_IF_ERROR(Fork());
  RETURN_IF_ERROR(EnqueueLayers(shape));
  for (const auto& rank : ranks_) RETURN_IF_ERROR(rank->Logits(*tables_, shape));
  RETURN_IF_ERROR(Join());
  for (std::size_t r = 1; r < ranks_.size(); ++r) RETURN_IF_ERROR(first().GatherLogits(*ranks_[r], shape));
  return OkStatus();
}

Status DeviceDecoder::EnqueueLayers(const StepShape& shape) {
  for (const auto& rank : ranks_) RETURN_IF_ERROR(rank->Embed(*tables_, shape));
  RETURN_IF_ERROR(SumOverRanks(&DeviceRank::residual, shape.rows));
  for (std::int64_t layer = 0; layer < options_.config.layers; ++layer) {
    for (const auto& rank : ranks_) RETURN_IF_ERROR(rank->Attend(layer, *tables_, shape));
    RETURN_IF_ERROR(SumOverRanks(&DeviceRank::summand, shape.rows));
    for (const auto& rank : ranks_) RETURN_IF_ERROR(rank->FeedForward(layer, shape));
    RETURN_IF_ERROR(SumOverRanks(&DeviceRank::summand, shape.rows));
  }
  return OkStatus();
}

Status DeviceDecoder::EnqueueDraws(std::span<const SampleWish> wishes) {
  const std::int64_t draws = tables_->draws();
  if (wishes.empty() || draws == 0) return OkStatus();
  RETURN_IF_ERROR(devices_.kernels->sample(tables_->In(first().table_block()).draws, draws, options_.config.vocabulary,
                                           weights_of_draws_, sums_of_draws_, drawn_, first().stream().handle()));
  const std::span<const std::byte> drawn = BytesAt(std::as_const(drawn_), draws);
  return first().stream().Copy(drawn_here_->bytes().first(drawn.size()), drawn);
}

// While the devices compute the step that was enqueued the same work is captured. Without a graph decoding goes on as
// it did.
void DeviceDecoder::Capture(const StepShape& shape) {
  Status captured = first().stream().BeginCapture();
  if (captured.ok()) {
    captured = EnqueueModel(shape);
    Result<std::unique_ptr<DeviceGraph>> graph = first().stream().EndCapture();
    if (captured.ok()) captured = graph.status();
    if (captured.ok()) return graphs_.Add(shape.rows, std::move(graph).value());
  }
  captures_ = false;
  LogWarn("graph_not_captured", "rows={} reason={} message={}", shape.rows, captured.reason(), captured.message());
}

Status DeviceDecoder::Await(Duration patience) {
  return AwaitEvent(*done_, Deadline::After(clock_, patience), clock_, kNap);
}

Status DeviceDecoder::Drain(Duration patience) {
  RETURN_IF_ERROR(Join());
  RETURN_IF_ERROR(first().stream().Record(*done_));
  return Await(patience);
}

Status DeviceDecoder::Settle(Status failure) {
  const auto given_up = [](const Status& status) {
    return status.reason() == "device_lost" || status.reason() == "device_deadline" ||
           status.reason() == "no_cuda_device";
  };
  Status settled = failure;
  if (!given_up(failure)) settled = Drain(devices_.step_deadline);
  if (settled.ok()) {
    held_.reset();
  } else {
    broken_ = settled;
  }
  return failure;
}

Result<Decoder::Draws> DeviceDecoder::Collect(std::span<const SampleWish> wishes) {
  Draws draws(wishes.size());
  std::vector<TokenLogprob> drawn(static_cast<std::size_t>(tables_->draws()));
  std::memcpy(drawn.data(), drawn_here_->bytes().data(), drawn.size() * sizeof(TokenLogprob));
  auto next_for_host = for_host_.begin();
  auto next = drawn.begin();
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    if (next_for_host != for_host_.end() && *next_for_host == i) {
      ++next_for_host;
      ASSIGN_OR_RETURN(draws[i], DrawOnHost(static_cast<std::int64_t>(i), wishes[i]));
    } else if (const TokenLogprob token = *next++; token.id >= 0) {
      draws[i] = SampledToken{.id = token.id, .logprob = token.logprob};
    }
  }
  return draws;
}

Result<std::vector<float>> DeviceDecoder::ReadLogits(std::int64_t i) {
  const std::int64_t vocabulary = options_.config.vocabulary;
  RETURN_IF_ERROR(first().stream().Copy(logits_here_->bytes(), BytesAt(first().logits() + i * vocabulary, vocabulary)));
  RETURN_IF_ERROR(first().stream().Record(*done_));
  RETURN_IF_ERROR(Await(devices_.step_deadline));
  std::vector<float> logits(static_cast<std::size_t>(vocabulary));
  std::memcpy(logits.data(), logits_here_->bytes().data(), logits_here_->bytes().size());
  return logits;
}

Result<std::optional<SampledToken>> DeviceDecoder::DrawOnHost(std::int64_t i, const SampleWish& wish) {
  ASSIGN_OR_RETURN(const std::vector<float> logits, ReadLogits(i));
  return SampleOnHost(logits, wish.rule, UniformAt(wish.seed, wish.position, wish.sample), host_scratch_);
}

}  // namespace bascule
