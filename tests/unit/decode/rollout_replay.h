// What a rollout should be, given what its spans say: computed one request at a time by a decoder without scheduler,
// batch, shared state or flips, from versions in plain memory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine_side/decode/decode_engine.h"
#include "engine_side/decode/host_decoder.h"
#include "engine_side/decode/kv_cache.h"
#include "tests/unit/decode/tiny_model.h"

namespace bascule {

class RolloutReplay {
 public:
  using Versions = std::map<std::uint64_t, std::unique_ptr<const PlainWeights>>;  // by number

  // `versions` are borrowed.
  RolloutReplay(const ModelConfig& config, const Versions& versions, int ranks);

  // Empty when every token, log-probability and prompt log-probability is, to the bit, what the versions and epochs
  // beside them give; else what is not. Spans whose KV epoch is older than their version have gone on over the state
  // there was.
  std::string Difference(const GenerateRequest& request, const std::optional<PromptReport>& prompt,
                         const std::vector<GeneratedToken>& tokens);

 private:
  struct Span {
    std::size_t begin = 0, end = 0;  // new tokens
    std::uint64_t version = 0, kv_epoch = 0;
  };
  static std::vector<Span> SpansOf(const std::vector<GeneratedToken>& tokens);

  void Begin() { cached_ = 0; }
  // State of everything before position `end`, made by `version` from where state ends.
  void Feed(std::uint64_t version, std::size_t end);
  // The tokens of a span, over the state there is.
  std::vector<std::optional<SampledToken>> Sample(const GenerateRequest& request, const Span& span);
  bool Agrees(const GenerateRequest& request, const Span& span, const std::vector<GeneratedToken>& tokens);
  bool AgreesOverMixedPrompt(const GenerateRequest& request, const Span& span,
                             const std::vector<GeneratedToken>& tokens);
  bool PromptAgrees(const GenerateRequest& request, const PromptReport& prompt);
  void Forward(std::uint64_t version, std::size_t end, std::size_t first_logits);

  const Versions& versions_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<HostDecoder> decoder_;
  std::vector<std::int32_t> pages_;
  std::vector<std::int32_t> sequence_;  // prompt and new tokens of the request at hand
  std::size_t prompt_size_ = 0;
  std::size_t cached_ = 0;
};

}  // namespace bascule
