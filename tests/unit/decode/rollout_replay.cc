#include "tests/unit/decode/rollout_replay.h"

#include <bit>
#include <numeric>
#include <utility>

namespace bascule {
namespace {

constexpr std::int64_t kPageTokens = 16;

bool SameBits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

bool Same(const std::optional<SampledToken>& wanted, const GeneratedToken& token) {
  return wanted && wanted->id == token.id && SameBits(wanted->logprob, token.logprob) && wanted->top == token.top;
}

}  // namespace

RolloutReplay::RolloutReplay(const ModelConfig& config, const Versions& versions, int ranks) : versions_(versions) {
  const EngineTensors& tensors = versions.begin()->second->tensors();
  const RankShape shape = *RankShapeOf(config, tensors, ranks);
  const std::int64_t pages = (config.max_positions + kPageTokens - 1) / kPageTokens;
  cache_ = *KvCache::Create({config.layers, shape.kv_heads, config.head_size, kPageTokens, ranks}, pages);
  decoder_ = *HostDecoder::Create({.config = config,
                                   .tensors = tensors,
                                   .shape = shape,
                                   .weight_type = WeightType::kBf16,
                                   .threads = 1,
                                   .max_rows = config.max_positions,
                                   .max_logits = config.max_positions},
                                  *cache_);
  pages_.resize(static_cast<std::size_t>(pages));
  std::iota(pages_.begin(), pages_.end(), 0);
}

std::string RolloutReplay::Difference(const GenerateRequest& request, const std::optional<PromptReport>& prompt,
                                      const std::vector<GeneratedToken>& tokens) {
  prompt_size_ = request.prompt.size();
  sequence_ = request.prompt;
  for (const GeneratedToken& token : tokens) sequence_.push_back(token.id);
  if (prompt && request.prompt_logprobs && prompt->version == prompt->kv_epoch && !PromptAgrees(request, *prompt)) {
    return fmt::format("prompt log-probabilities of version {}", prompt->version);
  }
  Begin();
  for (const Span& span : SpansOf(tokens)) {
    const bool pure = span.version == span.kv_epoch;
    if (pure) Begin();
    const bool agrees =
        pure || span.begin > 0 ? Agrees(request, span, tokens) : AgreesOverMixedPrompt(request, span, tokens);
    if (!agrees) {
      return fmt::format("tokens {} to {} of version {} over state of {}", span.begin, span.end - 1, span.version,
                         span.kv_epoch);
    }
  }
  return "";
}

std::vector<RolloutReplay::Span> RolloutReplay::SpansOf(const std::vector<GeneratedToken>& tokens) {
  std::vector<Span> spans;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (spans.empty() || spans.back().version != tokens[i].version || spans.back().kv_epoch != tokens[i].kv_epoch) {
      spans.push_back({i, i, tokens[i].version, tokens[i].kv_epoch});
    }
    spans.back().end = i + 1;
  }
  return spans;
}

void RolloutReplay::Forward(std::uint64_t version, std::size_t end, std::size_t first_logits) {
  std::vector<StepRow> rows;
  for (std::size_t position = cached_; position < end; ++position) {
    rows.push_back({.token = sequence_[position],
                    .position = static_cast<std::int64_t>(position),
                    .pages = pages_.data(),
                    .wants_logits = position >= first_logits});
  }
  if (!rows.empty()) decoder_->Forward(rows, *versions_.at(version));
  cached_ = end;
}

void RolloutReplay::Feed(std::uint64_t version, std::size_t end) { Forward(version, end, end); }

std::vector<std::optional<SampledToken>> RolloutReplay::Sample(const GenerateRequest& request, const Span& span) {
  Forward(span.version, prompt_size_ + span.end - 1, prompt_size_ + span.begin - 1);
  std::vector<SampleWish> wishes;
  for (std::size_t i = span.begin; i < span.end; ++i) {
    SampleWish& wish = wishes.emplace_back();
    wish.seed = request.seed;
    wish.sample = request.sample;
    wish.position = prompt_size_ + i;
    wish.rule = {.temperature = request.temperature, .top_k = request.top_k, .top_p = request.top_p};
    wish.rule.top_logprobs = request.top_logprobs;
    if (std::cmp_less(i, request.min_new_tokens)) wish.rule.banned = request.stop;
  }
  return decoder_->Sample(wishes);
}

bool RolloutReplay::Agrees(const GenerateRequest& request, const Span& span,
                           const std::vector<GeneratedToken>& tokens) {
  const std::vector<std::optional<SampledToken>> wanted = Sample(request, span);
  for (std::size_t i = span.begin; i < span.end; ++i) {
    if (!Same(wanted[i - span.begin], tokens[i])) return false;
  }
  return true;
}

// One or two flips lay within the prompt; where, the span does not say: some place explains the tokens.
bool RolloutReplay::AgreesOverMixedPrompt(const GenerateRequest& request, const Span& span,
                                          const std::vector<GeneratedToken>& tokens) {
  for (std::size_t first = 1; first < prompt_size_; ++first) {
    for (std::size_t second = first; second < prompt_size_; ++second) {
      const std::uint64_t last_between = second == first ? span.kv_epoch : span.version - 1;
      for (std::uint64_t between = span.kv_epoch; between <= last_between; ++between) {
        Begin();
        Feed(span.kv_epoch, first);
        Feed(between, second);
        if (Agrees(request, span, tokens)) return true;
      }
    }
  }
  return false;
}

bool RolloutReplay::PromptAgrees(const GenerateRequest& request, const PromptReport& prompt) {
  if (prompt.logprobs.size() + 1 != prompt_size_) return false;
  Begin();
  Forward(prompt.version, prompt_size_ - 1, 0);
  std::vector<SampleWish> wishes(prompt.logprobs.size());
  for (std::size_t i = 0; i < wishes.size(); ++i) wishes[i].rule.given = request.prompt[i + 1];
  const std::vector<std::optional<SampledToken>> wanted = decoder_->Sample(wishes);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i] || !SameBits(wanted[i]->logprob, prompt.logprobs[i])) return false;
  }
  return true;
}

}  // namespace bascule
