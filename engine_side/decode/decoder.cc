#include "engine_side/decode/decoder.h"

#include <utility>

namespace bascule {

Result<std::unique_ptr<Decoder>> Decoder::Create(DecoderOptions options, KvCache& cache) {
  std::unique_ptr<Decoder> decoder(new Decoder(std::move(options)));
  ASSIGN_OR_RETURN(decoder->shared_, SharedActivations::Allocate(decoder->options_));
  for (int rank = 0; rank < decoder->threads_.ranks(); ++rank) {
    ASSIGN_OR_RETURN(auto of_rank,
                     RankDecoder::Create(decoder->options_, rank, decoder->threads_, decoder->shared_, cache));
    decoder->ranks_.push_back(std::move(of_rank));
  }
  return decoder;
}

void Decoder::Forward(std::span<const StepRow> rows, const StepWeights& weights) {
  CHECK(static_cast<std::int64_t>(rows.size()) <= options_.max_rows);
  threads_.Run([&](int rank) { ranks_[static_cast<std::size_t>(rank)]->Forward(rows, weights); });
}

std::vector<std::optional<SampledToken>> Decoder::Sample(std::span<const SampleWish> wishes) {
  std::vector<std::optional<SampledToken>> tokens(wishes.size());
  threads_.Run([&](int rank) { ranks_[static_cast<std::size_t>(rank)]->Sample(wishes, tokens); });
  return tokens;
}

}  // namespace bascule
