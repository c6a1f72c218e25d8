#include "engine_side/decode/host_decoder.h"

#include <algorithm>
#include <utility>

namespace bascule {
namespace {

// Rough costs of the phases on one core, all ranks together, for choosing whether to share work.
struct PhaseCosts {
  double rows_ns = 0;      // of a phase over rows
  double products_ns = 0;  // of one over heads or feed-forward elements
  double logits_ns = 0;
};

PhaseCosts CostsOf(const DecoderOptions& options, std::int64_t rows) {
  constexpr double kElementNs = 0.5, kWeightNs = 0.1, kMultiplyAddNs = 0.025;
  const RankShape& shape = options.shape;
  const double hidden = static_cast<double>(options.config.hidden), count = static_cast<double>(rows);
  const double per_output_ns = hidden * shape.ranks * std::max(kWeightNs, count * kMultiplyAddNs);
  // Attention and feed-forward network have about as many weights; the smaller of the two decides.
  const auto outputs = static_cast<double>(std::min(shape.qkv_size() + shape.query_size, 3 * shape.ffn));
  return {.rows_ns = count * hidden * kElementNs * shape.ranks,
          .products_ns = outputs * per_output_ns,
          .logits_ns = static_cast<double>(shape.vocabulary) * per_output_ns};
}

}  // namespace

HostDecoder::HostDecoder(DecoderOptions options, KvCache& cache)
    : options_(std::move(options)),
      cache_(cache),
      threads_(std::min(options_.threads, options_.shape.ranks), options_.cores) {}

Result<std::unique_ptr<HostDecoder>> HostDecoder::Create(DecoderOptions options, KvCache& cache) {
  std::unique_ptr<HostDecoder> decoder(new HostDecoder(std::move(options), cache));
  ASSIGN_OR_RETURN(decoder->shared_, SharedActivations::Allocate(decoder->options_));
  for (int rank = 0; rank < decoder->options_.shape.ranks; ++rank) {
    ASSIGN_OR_RETURN(auto of_rank, RankDecoder::Create(decoder->options_, rank, decoder->shared_, cache));
    decoder->ranks_.push_back(std::move(of_rank));
  }
  return decoder;
}

Status HostDecoder::CopyPages(std::span<const PageCopy> copies) {
  for (const PageCopy& copy : copies) cache_.CopyPage(copy.from, copy.to);
  return OkStatus();
}

Result<Decoder::Draws> HostDecoder::Step(std::span<const StepRow> rows, std::span<const SampleWish> wishes,
                                         std::shared_ptr<StepWeights> weights) {
  Forward(rows, *weights);
  weights.reset();  // a session may be waiting for the lease
  return Sample(wishes);
}

template <typename Phase>
void HostDecoder::OnEveryRank(double nanoseconds, const Phase& phase) {
  threads_.ForRanges(options_.shape.ranks, 1, nanoseconds, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t rank = begin; rank < end; ++rank) phase(*ranks_[static_cast<std::size_t>(rank)]);
  });
}

void HostDecoder::Forward(std::span<const StepRow> rows, const StepWeights& weights) {
  const auto count = static_cast<std::int64_t>(rows.size());
  CHECK(count <= options_.max_rows);
  const PhaseCosts costs = CostsOf(options_, count);
  OnEveryRank(costs.rows_ns, [&](RankDecoder& rank) { rank.Begin(rows, weights); });
  for (std::int64_t layer = 0; layer < options_.config.layers; ++layer) {
    OnEveryRank(costs.rows_ns, [&](RankDecoder& rank) { rank.PrepareAttention(layer, rows); });
    OnEveryRank(costs.products_ns, [&](RankDecoder& rank) { rank.Attend(layer, rows); });
    OnEveryRank(costs.rows_ns, [&](RankDecoder& rank) { rank.PrepareFeedForward(layer, rows); });
    OnEveryRank(costs.products_ns, [&](RankDecoder& rank) { rank.FeedForward(layer, rows); });
  }
  OnEveryRank(costs.rows_ns, [&](RankDecoder& rank) { rank.PrepareLogits(rows); });
  OnEveryRank(costs.logits_ns, [&](RankDecoder& rank) { rank.Logits(rows); });
}

Decoder::Draws HostDecoder::Sample(std::span<const SampleWish> wishes) {
  Draws tokens(wishes.size());
  const double nanoseconds = static_cast<double>(wishes.size()) * static_cast<double>(options_.config.vocabulary);
  OnEveryRank(nanoseconds, [&](RankDecoder& rank) { rank.Sample(wishes, tokens); });
  return tokens;
}

}  // namespace bascule
